// Server-sent events over fetch: unlike EventSource it shows why a request was refused, and never
// repeats one.

import { Refused, request } from "./api.js";

/**
 * Yield [event, data] until the stream ends.
 *
 * @param {URLSearchParams} query the text, the model and the decoder's options
 * @param {AbortSignal} signal ends the stream, and with it the search on the server
 */
export async function* events(query, signal) {
  const response = await request(`v1/decode/stream?${query}`, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value.replaceAll("\r", "");
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event === null) continue;
        if (event[0] === "error") throw new Refused(event[1].error, 200);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** One block of lines as [event, data]; null for a comment, which only keeps the connection. */
export function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^(\w*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "event") event = value;
    else if (field === "data") data.push(value);
  }
  return data.length ? [event, JSON.parse(data.join("\n"))] : null;
}
