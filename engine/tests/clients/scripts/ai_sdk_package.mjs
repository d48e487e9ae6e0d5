// The AI SDK, packages `ai` and `@ai-sdk/openai` of npm: by responses, its default, and by chats.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, TEXT, URL, capability } from "./report.mjs";

const provider = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "any" });
const prompt = "Hi!";
const maxRetries = 0;

for (const [route, model] of [["responses", provider(MODEL)], ["chats", provider.chat(MODEL)]]) {
  await capability(`text by ${route}`, async () => {
    const answer = await generateText({ model, prompt, maxRetries });
    assert.equal(answer.text, TEXT);
    assert.equal(answer.finishReason, "stop");
  });

  await capability(`usage by ${route}`, async () => {
    const { usage } = await generateText({ model, prompt, maxRetries });
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  });

  await capability(`streaming by ${route}`, async () => {
    const answer = streamText({ model, prompt, maxRetries });
    let text = "";
    for await (const part of answer.textStream) text += part;
    assert.equal(text, TEXT);
    assert.ok((await answer.usage).outputTokens > 0);
  });

  await capability(`tool loop by ${route}`, async () => {
    const asked = [];
    const weather = tool({
      description: "Looks up the weather.",
      inputSchema: z.object({ city: z.string(), days: z.number().int() }),
      execute: async (given) => {
        asked.push(given);
        return "sunny";
      },
    });
    const options = { model, prompt, maxRetries, tools: { weather }, stopWhen: stepCountIs(3) };
    assert.equal((await generateText(options)).text, TEXT);
    assert.equal(asked.length, 1);
    const streamed = streamText(options);
    await streamed.consumeStream();
    assert.equal(await streamed.text, TEXT);
    assert.equal(asked.length, 2);
  });

  const continued = async (providerOptions) => {
    const question = { role: "user", content: prompt };
    const options = { model, maxRetries, providerOptions };
    const first = await generateText({ ...options, messages: [question] });
    const messages = [question, ...first.response.messages, { role: "user", content: "And?" }];
    assert.equal((await generateText({ ...options, messages })).text, TEXT);
  };

  // By default an earlier response is stored, and is later sent as a reference to it.
  await capability(`continued conversation by ${route}`, () => continued({}));

  if (route === "responses") {
    await capability(
      "continued conversation by responses with `store: false`",
      () => continued({ openai: { store: false } }),
    );
  }

  await capability(`structured output by ${route}`, async () => {
    const schema = z.object({ sure: z.boolean(), words: z.array(z.string()) });
    const answer = await generateText({ model, prompt, maxRetries, output: Output.object({ schema }) });
    assert.equal(typeof answer.output.sure, "boolean");
  });

  await capability(`structured output with tools by ${route}`, async () => {
    const output = Output.object({ schema: z.object({ sure: z.boolean() }) });
    const tools = { stop: tool({ inputSchema: z.object({}), execute: async () => "stopped" }) };
    // Each step is calls or the output, as the model samples it; after some steps it is the output.
    const stopWhen = stepCountIs(12);
    const answer = await generateText({ model, prompt, maxRetries, tools, output, stopWhen });
    assert.equal(answer.steps.at(-1).toolCalls.length, 0);
    assert.equal(typeof answer.output.sure, "boolean");
  });

  await capability(`images by ${route}`, async () => {
    const image = { type: "file", mediaType: "image/png", data: new Uint8Array([0x89, 0x50, 0x4e, 0x47]) };
    await generateText({ model, maxRetries, messages: [{ role: "user", content: [image] }] });
  }, APICallError);
}
