"""The `aider` command of the `aider-chat` package: one message to it, streamed and not."""

import os
import pathlib
import subprocess
import sys
import tempfile

from report import MODEL, TEXT, URL, capability

home = pathlib.Path(tempfile.mkdtemp())
(home / "words.txt").write_text("one\n")
# Its table of prices would be fetched.
environment = {**os.environ, "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
options = [
    "--model", "openai/" + MODEL, "--openai-api-base", URL + "/v1", "--openai-api-key", "any",
    "--no-git", "--no-check-update", "--no-show-release-notes", "--no-analytics", "--yes-always",
    "--no-show-model-warnings", "--no-pretty", "--no-suggest-shell-commands", "--no-detect-urls",
]


def aider(*args):
    command = [str(pathlib.Path(sys.executable).with_name("aider")), *options, *args]
    done = subprocess.run(
        command, cwd=home, env=environment, text=True, capture_output=True,
        stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and TEXT in done.stdout, done
    return done.stdout


@capability("chat")
def chat():
    aider("--no-stream", "--message", "Hi!", "words.txt")


@capability("streaming")
def streaming():
    aider("--message", "Hi!", "words.txt")


@capability("usage")
def usage():
    said = aider("--no-stream", "--message", "Hi!", "words.txt")
    assert "sent" in said and "received" in said, said
