// The `openai` package of npm: chats and responses.
import assert from "node:assert/strict";
import OpenAI, { BadRequestError } from "openai";
import { MODEL, TEXT, URL, capability } from "./report.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi!" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};

await capability("models", async () => {
  const { data } = await client.models.list();
  assert.deepEqual(data.map((model) => model.id), [MODEL]);
});

await capability("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages });
  assert.equal(answer.choices[0].message.content, TEXT);
});

await capability("usage", async () => {
  const { usage } = await client.chat.completions.create({ model: MODEL, messages });
  assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0);
});

await capability("streaming", async () => {
  const stream = await client.chat.completions.create({ model: MODEL, messages, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, TEXT);
  assert.equal(await client.chat.completions.stream({ model: MODEL, messages }).finalContent(), TEXT);
});

await capability("log-probabilities", async () => {
  const options = { model: MODEL, messages, logprobs: true, top_logprobs: 2 };
  const answer = await client.chat.completions.create(options);
  for (const token of answer.choices[0].logprobs.content) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 2);
  }
});

await capability("tool loop", async () => {
  const asked = [];
  const weather = (given) => {
    asked.push(given);
    return "sunny";
  };
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: [...messages],
    tools: [{
      type: "function",
      function: { name: "weather", function: weather, parse: JSON.parse, parameters },
    }],
  });
  assert.equal(await runner.finalContent(), TEXT);
  assert.equal(asked.length, 1);
  assert.deepEqual(Object.keys(asked[0]).sort(), ["city", "days"]);
});

await capability("structured output", async () => {
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages,
    response_format: {
      type: "json_schema",
      json_schema: { name: "weather", strict: true, schema: parameters },
    },
  });
  assert.deepEqual(Object.keys(JSON.parse(answer.choices[0].message.content)).sort(), ["city", "days"]);
});

await capability("responses", async () => {
  const first = await client.responses.create({ model: MODEL, input: "Hi!" });
  assert.equal(first.output_text, TEXT);
  const second = await client.responses.create({
    model: MODEL,
    input: "And?",
    previous_response_id: first.id,
  });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
});

await capability("streamed responses", async () => {
  const stream = client.responses.stream({ model: MODEL, input: "Hi!" });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, TEXT);
  assert.equal((await stream.finalResponse()).output_text, TEXT);
});

await capability("images", async () => {
  const image = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
  const asked = [{ role: "user", content: [image] }];
  await client.chat.completions.create({ model: MODEL, messages: asked });
}, BadRequestError);
