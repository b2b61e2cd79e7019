// The openai client as a process. A call a line on stdin: {key, url, method, body, extra, options}; `options` go to it.
// What its objects held, a line on stdout.
import OpenAI from "openai";
import { createInterface } from "node:readline";

interface Call {
  key: string;
  url: string;
  method: string;
  body: any;
  extra?: Record<string, unknown>;
  options?: Record<string, unknown>;
}

const AT_ONCE = 8;

// What stands in `extra` has no place in the client's types; it sends it as it is.
async function made(client: OpenAI, call: Call): Promise<unknown[]> {
  const body = { ...call.body, ...call.extra };
  switch (call.method) {
    case "completions.create":
      return held(await client.completions.create(body));
    case "chat.completions.create":
      return held(await client.chat.completions.create(body));
    case "chat.completions.stream":
      return [await client.chat.completions.stream(body).finalChatCompletion()];
    case "chat.completions.parse":
      return [await client.chat.completions.parse(body)];
    case "embeddings.create":
      return [await client.embeddings.create(body)];
    case "models.list": {
      const page = await client.models.list();
      return [{ object: page.object, data: page.data }];
    }
    case "models.retrieve":
      return [await client.models.retrieve(body.model)];
    default:
      throw new Error(`no method ${call.method}`);
  }
}

class Cut extends Error {
  constructor(readonly answers: unknown[], override readonly cause: unknown) {
    super("a stream ended with an error");
  }
}

async function held(answer: object): Promise<unknown[]> {
  if (!(Symbol.asyncIterator in answer)) return [answer];
  const answers: unknown[] = [];
  try {
    for await (const chunk of answer as AsyncIterable<unknown>) answers.push(chunk);
  } catch (error) {
    throw new Cut(answers, error);
  }
  return answers;
}

async function answer(call: Call): Promise<object> {
  const client = new OpenAI({ baseURL: `${call.url}/v1`, apiKey: "none", maxRetries: 0, ...call.options });
  try {
    return { answers: await made(client, call) };
  } catch (thrown) {
    const error = (thrown instanceof Cut ? thrown.cause : thrown) as InstanceType<typeof OpenAI.APIError>;
    const { status, code, param, type } = error;
    return {
      answers: thrown instanceof Cut ? thrown.answers : [],
      error: { class: error.constructor.name, status, code, param, type, message: error.message },
    };
  }
}

async function work(calls: Call[]): Promise<void> {
  for (let call = calls.shift(); call !== undefined; call = calls.shift()) {
    process.stdout.write(JSON.stringify({ key: call.key, ...(await answer(call)) }) + "\n");
  }
}

const calls: Call[] = [];
for await (const line of createInterface({ input: process.stdin })) calls.push(JSON.parse(line));
await Promise.all(Array.from({ length: AT_ONCE }, () => work(calls)));
