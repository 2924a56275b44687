"""What every test shares."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread_each() -> None:
    """The tests run in parallel already; torch's threads on top of that would wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def cache_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never read or write the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SSM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jaxtyping, which is on in tests and would speak before our own refusals."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
