"""Profiles of machines, and addresses of servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.errors import ConfigError
from rusty_r2.export.hosting import auto_profile, named_profile
from rusty_r2.export.ollama import OllamaDeployer
from rusty_r2.export.ollama_api import OllamaServer, address


def test_the_documented_ryzen():
    profile = OllamaDeployer().get_ryzen_profile()
    assert (profile.num_parallel, profile.num_ctx, profile.num_thread) == (4, 4096, 14)
    assert named_profile("ryzen") == profile
    with pytest.raises(ConfigError, match="no hosting profile 'fast'"):
        named_profile("fast")


@given(st.integers(1, 256), st.floats(0.5, 1024))
def test_auto_is_sane_from_one_core_up(cores, ram):
    profile = auto_profile(cores=cores, ram_gb=ram)
    assert 1 <= profile.num_thread <= cores and 1 <= profile.num_parallel <= 4 and profile.num_ctx >= 2048
    assert OllamaDeployer().get_auto_profile().num_thread >= 1


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("", (False, "127.0.0.1", 11434)),
        ("0.0.0.0", (False, "127.0.0.1", 11434)),
        ("box:8080", (False, "box", 8080)),
        ("https://box", (True, "box", 443)),
        ("http://[::1]:9", (False, "::1", 9)),
    ],
)
def test_hosts_are_read_as_ollama_reads_them(host, found):
    assert address(host) == found
    assert address(OllamaServer(host).url) == found  # what is written down can be read again


def test_a_wrong_host_is_one_line():
    for host in ("box:port", "ftp://box", "http://[::1", "box:99999"):
        with pytest.raises(ConfigError, match="OLLAMA_HOST"):
            address(host)
