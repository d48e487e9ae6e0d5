"""The `llm` command, with the server in its file `extra-openai-models.yaml`."""

import os
import pathlib
import subprocess
import sys
import tempfile

from report import MODEL, TEXT, URL, capability

home = pathlib.Path(tempfile.mkdtemp())
(home / "extra-openai-models.yaml").write_text(f"""\
- model_id: local
  model_name: {MODEL}
  api_base: {URL}/v1
  supports_schema: true
  supports_tools: true
""")
environment = {**os.environ, "LLM_USER_PATH": str(home), "OPENAI_API_KEY": "any"}


def llm(*args):
    command = [str(pathlib.Path(sys.executable).with_name("llm")), *args]
    done = subprocess.run(
        command, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done
    return done


@capability("chat")
def chat():
    assert llm("--no-stream", "-m", "local", "-s", "Be brief.", "Hi!").stdout == TEXT + "\n"
    assert llm("--no-stream", "--continue", "And?").stdout == TEXT + "\n"


@capability("streaming")
def streaming():
    assert llm("-m", "local", "Hi!").stdout == TEXT + "\n"


@capability("usage")
def usage():
    said = llm("-m", "local", "--usage", "Hi!").stderr
    assert "input" in said and "output" in said, said


@capability("structured output")
def structured():
    said = llm("-m", "local", "--schema", "sure bool, days int", "Sure?").stdout
    assert '"sure"' in said and '"days"' in said, said


@capability("tool loop")
def tool_loop():
    function = "def weather(city: str) -> str:\n    return 'sunny'\n"
    done = llm("-m", "local", "--functions", function, "--tools-debug", "Rain?")
    assert TEXT in done.stdout and "sunny" in done.stderr, done
