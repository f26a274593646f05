"""
Model-based test: the invariants hold after every action, in any order of events, and the run ends once faults stop.

Hypothesis drives a cluster: actions, faults, deaths of nodes, passing time, restarts of the broker. It reports the
shortest sequence of events that breaks an invariant.
"""

from random import Random

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncrl.config.config import Config
from tests.broker.chaos import CONFIGS, check, check_promises, restart, run_to_the_end, start_all
from tests.broker.driver import Cluster

NUM_HELD_OUT = 2
PLACES = st.integers(0, 1 << 16)
"""Index into a list of choices, modulo its length."""


class BrokerModel(RuleBasedStateMachine):
    cluster: Cluster
    num_deaths = 0

    @initialize(config=CONFIGS)
    def begin(self, config: Config) -> None:
        self.cluster = Cluster(config, num_held_out=NUM_HELD_OUT)
        start_all(self.cluster)

    @precondition(lambda self: not self.cluster.is_over)
    @rule(seed=st.integers(0, 1 << 32), count=st.integers(1, 40))
    def things_go_on(self, seed: int, count: int) -> None:
        dice = Random(seed)
        for _ in range(count):
            if not self.cluster.is_over and (actions := self.cluster.actions()):
                dice.choice(actions)[1]()
                check(self.cluster)

    @precondition(lambda self: not self.cluster.is_over)
    @rule(place=PLACES)
    def something_breaks(self, place: int) -> None:
        if faults := [fault for node in self.cluster.nodes.values() for fault in node.faults()]:
            faults[place % len(faults)][1]()

    @precondition(lambda self: not self.cluster.is_over)
    @rule(place=PLACES)
    def a_node_dies_and_another_start_of_it_says_hello(self, place: int) -> None:
        nodes = list(self.cluster.nodes.values())
        victim = nodes[place % len(nodes)]
        self.cluster.kill(victim)
        restart(self.cluster, victim)

    @precondition(lambda self: not self.cluster.is_over)
    @rule(seconds=st.sampled_from([0.25, 9.0, 11.0, 200.0]), place=PLACES)
    def time_passes_and_one_node_is_silent(self, seconds: float, place: int) -> None:
        known = self.cluster.scheduler.nodes
        before = [node for node in self.cluster.nodes.values() if known.get(node.peer)]
        silent = {node.peer for node in before[place % len(before) :][:1]} if before else set()
        self.cluster.tick(seconds, silent)
        for node in [node for node in before if known.get(node.peer) is None]:
            del self.cluster.nodes[node.peer]  # Forgotten: its link is reset.
            restart(self.cluster, node)

    @rule()
    def the_broker_dies_and_starts_again(self) -> None:
        if not self.cluster.cause:
            self.cluster = Cluster(self.cluster.config, num_held_out=NUM_HELD_OUT, before=self.cluster)
            start_all(self.cluster)

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "cluster"):
            check(self.cluster)

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            run_to_the_end(self.cluster, Random(0))
            for kind in {happened.kind for happened in self.cluster.events}:
                event(kind)
            check_promises(self.cluster)


TestBrokerModel = BrokerModel.TestCase
TestBrokerModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
