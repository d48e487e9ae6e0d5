"""The `lm_eval` command of the `lm-eval` package: made-up tasks over completions."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from report import MODEL, URL, capability

home = pathlib.Path(tempfile.mkdtemp())
(home / "questions.jsonl").write_text("".join(
    json.dumps({"question": f"Is {n} even?", "choices": ["yes", "no"], "answer": n % 2}) + "\n"
    for n in range(4)))
HEAD = f"""\
dataset_path: json
dataset_kwargs:
  data_files:
    test: {home}/questions.jsonl
test_split: test
doc_to_text: "{{{{question}}}}"
"""
(home / "chosen.yaml").write_text(HEAD + """\
task: chosen
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
""")
(home / "written.yaml").write_text(HEAD + """\
task: written
output_type: generate_until
doc_to_target: "Yes, ok!"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 16
metric_list:
  - metric: exact_match
""")
# The datasets are files, and nothing is looked up on a hub.
environment = {
    **os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hub"), "OPENAI_API_KEY": "any"}


def evaluated(task, model, path):
    """Returns the results of a task, and how many requests it took."""
    output = home / f"{task}-{model}"
    command = [
        str(pathlib.Path(sys.executable).with_name("lm_eval")), "--model", model, "--model_args",
        f"model={MODEL},base_url={URL}{path},max_retries=1", "--tasks", task, "--include_path",
        str(home), "--output_path", str(output)]
    done = subprocess.run(command, cwd=home, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    [results] = output.rglob("results_*.json")
    return json.loads(results.read_text())["results"][task]


@capability("log-likelihoods")
def loglikelihoods():
    results = evaluated("chosen", "local-completions", "/v1/completions")
    assert 0 <= results["acc,none"] <= 1, results


@capability("completions")
def completions():
    results = evaluated("written", "local-completions", "/v1/completions")
    assert results["exact_match,none"] == 1, results
