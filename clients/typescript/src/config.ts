/** Where the service is, and which API key to use: options, or the environment of Node.js. */

import { ConfigurationError } from "./errors.js";

const URL_VARIABLE = "BOXD_URL";
const KEY_VARIABLE = "BOXD_API_KEY";

/** The URL of the service, without a trailing slash, and the API key. */
export interface Settings {
  url: string;
  key: string;
}

interface Process {
  env?: Record<string, string | undefined>;
  versions?: { node?: string; bun?: string };
}

/** Return the process of Node.js; undefined in a browser. */
function nodeProcess(): Process | undefined {
  return (globalThis as { process?: Process }).process;
}

/** Return whether this is Node.js itself, whose `fetch` shows all headers of an answer. */
export function inNode(): boolean {
  const versions = nodeProcess()?.versions;
  return versions?.node !== undefined && versions.bun === undefined && !("Deno" in globalThis);
}

/** Return the settings. Options precede the environment. Throws `ConfigurationError`. */
export function load(url?: string, key?: string): Settings {
  const variables = nodeProcess()?.env ?? {};
  const place = url || variables[URL_VARIABLE];
  const secret = key || variables[KEY_VARIABLE];
  const remedy = `set the option, or ${URL_VARIABLE} and ${KEY_VARIABLE} in the environment`;
  if (!place) throw new ConfigurationError(`no URL of the service; ${remedy}`);
  const checked = checkedUrl(place);
  if (!secret) throw new ConfigurationError(`no API key for ${checked}; ${remedy}`);
  // Programs log and serialise their objects; the key must not be among what they show.
  const hidden = { value: checkedKey(secret), enumerable: false };
  return Object.defineProperty({ url: checked, key: "" }, "key", hidden);
}

function checkedUrl(url: string): string {
  let parts: URL;
  try {
    parts = new URL(url);
  } catch {
    throw new ConfigurationError(`'${url}' is not a URL such as https://boxes.example.com`);
  }
  if (parts.protocol !== "http:" && parts.protocol !== "https:") {
    throw new ConfigurationError(`'${url}' is not a URL such as https://boxes.example.com`);
  }
  if (parts.username || parts.password || parts.search || parts.hash) {
    throw new ConfigurationError("the URL of the service has a user, a query or a fragment");
  }
  return parts.href.replace(/\/+$/, "");
}

function checkedKey(key: string): string {
  const text = key.trim();
  if (!/^[\x21-\x7e]{1,512}$/.test(text)) {
    throw new ConfigurationError("the API key has characters that no API key has");
  }
  return text;
}
