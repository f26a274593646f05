"""
Fakes and checks for a host's own tests.

    FakeEngine                an engine without a model, which a test controls
    asyncrl.testing.engine    checks that a host's own `Engine` keeps its contract
"""

from asyncrl.testing.fake_engine import IMAGE_GRID as IMAGE_GRID
from asyncrl.testing.fake_engine import LOGPROB as LOGPROB
from asyncrl.testing.fake_engine import FakeBoundary as FakeBoundary
from asyncrl.testing.fake_engine import FakeEngine as FakeEngine
from asyncrl.testing.fake_engine import RunningRequest as RunningRequest
