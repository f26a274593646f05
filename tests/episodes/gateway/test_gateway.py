from asyncrl.episodes.gateway.gateway import Gateway
from tests.episodes.gateway.doubles import Episode


def policy(_: str) -> str:
    return "x"


def test_a_capability_opens_one_episode_until_it_is_closed() -> None:
    gateway = Gateway("http://127.0.0.1:9")
    one, two = Episode(policy, gateway=gateway), Episode(policy, gateway=gateway)
    assert gateway.find(one.open.key) is one.open
    assert gateway.find(two.open.key) is two.open
    assert gateway.find(one.open.key[:-1]) is gateway.find("") is gateway.find("\ud800") is None


def test_addresses_contain_the_capability() -> None:
    episode = Episode(policy, gateway=Gateway("http://127.0.0.1:9")).open
    assert episode.base_url == f"http://127.0.0.1:9/e/{episode.key}/v1"
    assert episode.reward_url == f"http://127.0.0.1:9/e/{episode.key}/reward"


def test_capabilities_have_256_bits() -> None:
    keys = {Episode(policy).open.key for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 43 for key in keys)  # base64
