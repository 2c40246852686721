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


@pytest.fixture
def server():
    """A stand-in for Ollama, answering."""
    from .ollama_standin import stand_in

    with stand_in() as running:
        yield running


@pytest.fixture
def gguf(tmp_path):
    from .tiny_gguf import tiny_gguf

    return tiny_gguf(tmp_path / "a folder" / "my model.gguf")


@pytest.fixture
def deployer(server):
    from rusty_r2.export.ollama import OllamaDeployer

    return OllamaDeployer(host=server.url)
