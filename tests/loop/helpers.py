"""What the tests of the loop share: the helpers of the export's tests, and ten facts as traces."""

import importlib.util
import json
from pathlib import Path

from rusty_r2 import files
from rusty_r2.trace import ExecutionTrace

FACTS = {
    "What barks?": "A dog barks.",
    "What meows?": "A cat meows.",
    "Sky colour?": "The sky is blue.",
    "Two plus two?": "It is four.",
    "Capital of France?": "It is Paris.",
    "Opposite of up?": "It is down.",
    "Frozen water?": "It is ice.",
    "What do bees make?": "They make honey.",
    "Who brings milk?": "A cow brings milk.",
    "Where do fish live?": "In the sea.",
}


def helper(name):
    """A helper of the export's tests."""
    path = Path(__file__).parent.parent / "export" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"helper_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stand_in = helper("ollama_standin").stand_in
LightMind = helper("light_mind").LightMind


def labelled(path, pairs):
    """Traces of (request, answer, label), as a file."""
    lines = [
        ExecutionTrace(
            trace_id=f"t{number}", user_query=asked, final_response=said, label=label, manual_review=True,
            agent_name="small", timestamp=f"2026-01-01T00:00:{number:02d}+00:00",
        ).to_dict()
        for number, (asked, said, label) in enumerate(pairs)
    ]  # fmt: skip
    return files.write(path, "".join(json.dumps(line) + "\n" for line in lines))
