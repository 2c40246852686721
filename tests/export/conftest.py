"""What the tests of the export share: one small model that knows a text, and its 8-bit file."""

import pytest


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small Llama that knows the beginning of the held-out text by heart."""
    pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
    pytest.importorskip("transformers", reason="pip install 'rusty-r2[train]'")
    from .models import make

    return make(tmp_path_factory.mktemp("models") / "tiny-llama", steps=40)


@pytest.fixture(scope="session")
def healthy(trained, tmp_path_factory):
    """Its 8-bit file."""
    from rusty_r2.export.gguf import write_gguf

    return write_gguf(trained, tmp_path_factory.mktemp("files") / "tiny.gguf", "Q8_0").path
