"""What a script prints: one JSON line for each capability of a client.

A capability whose exercise fails in any way that is not a named refusal ends the script.
"""

import json
import sys

# Address of the server, without a path.
URL = sys.argv[1]
# Address of a server whose model embeds.
EMBEDDER_URL = sys.argv[2]
# Name of the served models.
MODEL = "tiny"
# Text that the tests' model writes where nothing forces another one.
TEXT = "Yes, ok!"


def capability(name, refusal=None):
    """Decorator that runs a function as the exercise of the capability `name` and prints the result.

    `refusal` is the exception by which the client reports that the server refuses the request. With
    it, the exercise has to be refused.
    """

    def run(exercise):
        result = "unchanged"
        if refusal is not None:
            result = "refused: " + refused(exercise, refusal)
        else:
            exercise()
        print(json.dumps({"capability": name, "result": result}), flush=True)
        return exercise

    return run


def refused(exercise, refusal):
    """Returns the server's message in the exception with which an exercise ends."""
    try:
        exercise()
    except refusal as error:
        body = getattr(error, "body", None) or {}
        return body.get("error", body).get("message") or str(error)
    raise SystemExit("the server has taken what it was expected to refuse")
