/** A server on a real socket that answers each request with bytes of the test. */

import { createServer } from "node:net";
import { Client, RetryPolicy } from "boxd-client";

export const FAST = new RetryPolicy({ attempts: 3, first: 0.01, longest: 1 });

/**
 * Serve connections. `answers` are called in turn, the last one for all further requests, with
 * the connection and the request; each has one connection of its own.
 */
export async function serve(test, ...answers) {
  const requests = [];
  const sockets = new Set();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => undefined);
    let received = Buffer.alloc(0);
    let request = null;
    socket.on("data", (data) => {
      received = Buffer.concat([received, data]);
      const end = received.indexOf("\r\n\r\n");
      if (request !== null || end < 0) return;
      request = parsed(received.subarray(0, end).toString("latin1"));
      request.socket = socket;
      request.body = () => received.subarray(end + 4);
      requests.push(request);
      const answer = answers[Math.min(requests.length, answers.length) - 1];
      answer(socket, request);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const url = `http://127.0.0.1:${server.address().port}`;
  const client = (options = {}) =>
    new Client({ url, key: "svc_test", retries: FAST, timeoutSeconds: 20, ...options });
  return { url, requests, client };
}

/** Return an answer with a body, whose connection then ends. */
export function answer(status, body, headers = {}) {
  const bytes = Buffer.from(body);
  const all = {
    "Content-Type": "application/json",
    "Content-Length": bytes.length,
    Connection: "close",
    ...headers,
  };
  return (socket) => {
    socket.write(Buffer.concat([head(status, all), bytes]));
    socket.end();
  };
}

/** Return an answer with a JSON value. */
export function json(value, status = 200, headers = {}) {
  return answer(status, JSON.stringify(value), headers);
}

/** Return an answer with chunks of an event stream. `end`: `end`, `cut` or `stay`. */
export function events(chunks, end = "end") {
  return (socket) => {
    socket.write(
      head(200, { "Content-Type": "text/event-stream", "Transfer-Encoding": "chunked" }),
    );
    for (const chunk of chunks) {
      const bytes = Buffer.from(chunk);
      socket.write(`${bytes.length.toString(16)}\r\n`);
      socket.write(bytes);
      socket.write("\r\n");
    }
    if (end === "end") socket.end("0\r\n\r\n");
    if (end === "cut") socket.end();
  };
}

/** Return the bytes of one server-sent event. */
export function event(name, data, id) {
  const line = id === undefined ? "" : `id: ${id}\n`;
  return `${line}event: ${name}\ndata: ${data}\n\n`;
}

/** Return the event of output. */
export function output(text, name = "stdout", id = undefined) {
  return event(name, Buffer.from(text).toString("base64"), id);
}

export const EXIT = event("exit", '{"code": 0}');

/** Close the connection without an answer. */
export const hangUp = (socket) => socket.destroy();
/** Leave the request without an answer. */
export const silence = () => undefined;

function head(status, headers) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`HTTP/1.1 ${status} Answer\r\n${lines.join("")}\r\n`, "latin1");
}

function parsed(text) {
  const [line, ...lines] = text.split("\r\n");
  const [method, target] = line.split(" ");
  const headers = {};
  for (const one of lines) {
    const colon = one.indexOf(":");
    headers[one.slice(0, colon).toLowerCase()] = one.slice(colon + 1).trim();
  }
  return { method, target, headers };
}
