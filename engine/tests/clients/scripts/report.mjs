// What a script prints: one JSON line for each capability of a client. A capability whose exercise
// fails in any way that is not a named refusal ends the script.

// Address of the server, without a path.
export const URL = process.argv[2];
// Name of the served model.
export const MODEL = "tiny";
// Text that the tests' model writes where nothing forces another one.
export const TEXT = "Yes, ok!";

// Runs the exercise of the capability `name` and prints the result. `Refusal` is the class of the
// error by which the client reports that the server refuses the request; with it, the exercise has
// to be refused.
export async function capability(name, exercise, Refusal) {
  let result = "unchanged";
  if (Refusal) {
    result = `refused: ${await refused(exercise, Refusal)}`;
  } else {
    await exercise();
  }
  console.log(JSON.stringify({ capability: name, result }));
}

// Returns the server's message in the error with which an exercise ends.
async function refused(exercise, Refusal) {
  try {
    await exercise();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return error.error?.message ?? error.message;
  }
  throw new Error("the server has taken what it was expected to refuse");
}
