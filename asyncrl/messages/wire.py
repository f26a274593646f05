"""
All messages by receiver, and the codec of the wire.

Nouns and verbs are offers and requests (`Offer`, `Lease`, `Take`); past participles are facts (`Stored`, `Scored`).
On the wire a message is a msgpack array ``[class name, field, field, ...]``. New fields are appended, with a default,
so that older and newer nodes understand each other. Arrays are raw little-endian bytes in ``bin`` fields (int32 token
ids, float32 log-probs) and never lists, which cost 43 times more.
"""

from asyncrl.actor.codec import Codec
from asyncrl.messages.files import (
    CheckpointWanted,
    FetchPart,
    FileList,
    FilePart,
    ListFiles,
    OfferCheckpoint,
    PutCheckpointPart,
    PutCheckpointPartDone,
)
from asyncrl.messages.reward import Grade, Scored
from asyncrl.messages.rollout import Cancelled, Failed, Hold, Lease, Offer, Release, Settled, StartedOver
from asyncrl.messages.session import (
    AskTurn,
    Asleep,
    Barred,
    Beat,
    Bye,
    Drain,
    Draining,
    Hello,
    Ready,
    Reject,
    Sleep,
    Stop,
    StoreGet,
    StoreSet,
    StoreValue,
    Wake,
    Welcome,
)
from asyncrl.messages.spool import Accepted, Fetch, Fetched, Put, Spools, Stored, Trim
from asyncrl.messages.supervisor import (
    Admit,
    Admitted,
    Drained,
    Evaluated,
    Exited,
    Failures,
    Finished,
    Interrupt,
    Notice,
    Pause,
    Paused,
    Progress,
    Returned,
    SetSettings,
    SettingsChanged,
    Stacks,
    StacksWanted,
    Status,
    StatusWanted,
)
from asyncrl.messages.trainer import (
    Assembled,
    Batch,
    Checked,
    Commit,
    Disbanded,
    Evaluating,
    PartWritten,
    Resumed,
    StepFailed,
    Stepped,
    Take,
    Work,
)
from asyncrl.messages.weights import (
    Abort,
    FetchedWeights,
    FetchWeights,
    ListWeights,
    Live,
    Published,
    Publishing,
    PutWeights,
    PutWeightsDone,
    Transfer,
    TransferFailed,
    Transferred,
    Upload,
    Uploaded,
    WeightsList,
)

PROTOCOL = 14
"""Version of this vocabulary, sent in `Hello`. The broker refuses a node with another version and names both."""
ToBroker = (
    Hello | Ready | Beat | Asleep | AskTurn | Draining | Bye | Drain | StoreSet | StoreGet
    | Offer | Scored | Failed | StartedOver | Live | Transferred | TransferFailed
    | Resumed | StepFailed | Take | Commit | Publishing | Uploaded | Stepped
    | Stored | Exited | Interrupt | StatusWanted | Pause | SetSettings
    | StacksWanted | Stacks | Admit
)  # fmt: skip
ToRollout = (
    Welcome | Reject | Barred | StoreValue | Transfer | Stop | Drain | Wake | Sleep
    | StacksWanted | Lease | Settled | Cancelled | Hold | Release | Fetched | Abort | Spools | FileList | FilePart
    | WeightsList | FetchedWeights
)  # fmt: skip
ToReward = Welcome | Reject | Barred | Stop | Drain | Grade | Fetched | Spools | StacksWanted
ToTrainer = (
    Welcome | Reject | StoreValue | Transfer | Stop | Drain | Wake
    | Batch | Published | Evaluating | Evaluated | Fetched | Abort | Assembled | Disbanded
    | Upload | PutWeightsDone | Spools | FileList | FilePart | CheckpointWanted | PutCheckpointPartDone
    | StacksWanted
)  # fmt: skip
ToMachine = Welcome | Reject | StoreValue | Stop | Assembled | Disbanded
ToFirstRank = Hello | Beat | Checked | PartWritten | StoreSet | StoreGet
ToShard = Welcome | Reject | Stop | Batch | Work | Fetched | StoreValue | Spools
ToSpool = (
    Welcome | Reject | Stop | Put | Fetch | Trim
    | PutWeights | ListWeights | FetchWeights | ListFiles | FetchPart | OfferCheckpoint | PutCheckpointPart | Accepted
)  # fmt: skip
ToSupervisor = (
    Welcome | Reject | Stop | Progress | Evaluated | Drained | Finished | Failures | Notice
    | Status | Paused | SettingsChanged | Stacks | Returned | Admitted
)  # fmt: skip
AnyMessage = ToBroker | ToRollout | ToReward | ToTrainer | ToMachine | ToFirstRank | ToShard | ToSpool | ToSupervisor
CODEC = Codec(AnyMessage)
"""Decoder of every message of this module."""
