// Requests to the agent. `evenkeel dashboard` puts a key behind the # of the page's address. With that key every
// request and every answer is sealed, because other processes may read what goes over the loopback port.
// dashboard_proxy.py is the other side, and describes the cipher. Without a key, requests are plain.

const SESSION_BYTES = 16;
const NONCE_BYTES = 16;
const TAG_BYTES = 32;
const CHUNK_BYTES = 256;
const ASK = 113; // "q": the direction of a message
const ANSWER = 97; // "a"

/** The dashboard does not accept this page: the address is not whole, or another browser has opened it. */
export class Refused extends Error {}

/** The JSON at `path`, or null if there is none. */
export async function get(path) {
  try {
    const answer = await ask(path);
    const parts = [];
    for await (const part of answer.parts) parts.push(part);
    return answer.status === 200 ? JSON.parse(new TextDecoder().decode(joined(...parts))) : null;
  } catch {
    return null; // the page shows that the agent does not answer
  }
}

/** The server-sent events at `path`, as {name, data}. */
export async function* watch(path) {
  const answer = await ask(path);
  if (answer.status !== 200) throw new Error(`${path}: ${answer.status}`);
  const decoder = new TextDecoder();
  let text = "";
  for await (const part of answer.parts) {
    const events = (text + decoder.decode(part, { stream: true })).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const fields = new Map(event.split("\n").map((line) => line.split(/: (.*)/s)));
      yield { name: fields.get("event"), data: fields.get("data") };
    }
  }
}

async function ask(path) {
  const seal = await seals;
  if (!seal) {
    const answer = await fetch(path);
    if (answer.status === 403) throw new Refused();
    return { status: answer.status, parts: chunks(answer.body) };
  }
  const asked = random(NONCE_BYTES);
  const sealed = await seal.seal(nameOf(ASK, asked), new TextEncoder().encode(path));
  const body = joined(seal.session, asked, sealed);
  const answer = await fetch("ask", { method: "POST", body });
  if (answer.status === 403) throw new Refused();
  if (!answer.ok) throw new Error(`${answer.status}`);
  const parts = frames(seal, asked, new Reader(answer.body));
  const head = JSON.parse(new TextDecoder().decode((await parts.next()).value));
  return { status: head.status, parts };
}

/** The opened frames of an answer, without the empty one at its end. */
async function* frames(seal, asked, reader) {
  const answered = await reader.take(NONCE_BYTES);
  for (let number = 0; ; number += 1) {
    const length = new DataView((await reader.take(4)).buffer).getUint32(0);
    const sealed = await reader.take(TAG_BYTES + length);
    const part = await seal.open(nameOf(ANSWER, asked, answered, number), sealed);
    if (!part.length) return;
    yield part;
  }
}

class Seal {
  static async from(key, session) {
    const base = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    const derive = (label) => crypto.subtle.sign("HMAC", base, joined(new TextEncoder().encode(label), session));
    const seal = new Seal();
    seal.session = session;
    seal.cipherKey = await crypto.subtle.importKey("raw", await derive("cipher"), "PBKDF2", false, ["deriveBits"]);
    const hmac = { name: "HMAC", hash: "SHA-256" };
    seal.tagKey = await crypto.subtle.importKey("raw", await derive("tag"), hmac, false, ["sign", "verify"]);
    return seal;
  }

  async seal(name, text) {
    const hidden = await this.#xor(name, text);
    return joined(new Uint8Array(await crypto.subtle.sign("HMAC", this.tagKey, joined(name, hidden))), hidden);
  }

  async open(name, sealed) {
    const hidden = sealed.subarray(TAG_BYTES);
    const tag = sealed.subarray(0, TAG_BYTES);
    const isValid = await crypto.subtle.verify("HMAC", this.tagKey, tag, joined(name, hidden));
    if (!isValid) throw new Error("the answer was changed on its way");
    return this.#xor(name, hidden);
  }

  /** HMAC-SHA256 in counter mode; PBKDF2 with one iteration is exactly that. */
  async #xor(name, text) {
    const keystream = (_, index) => {
      const algorithm = { name: "PBKDF2", hash: "SHA-256", salt: joined(name, fourBytes(index)), iterations: 1 };
      return crypto.subtle.deriveBits(algorithm, this.cipherKey, CHUNK_BYTES * 8);
    };
    const blocks = await Promise.all(Array.from({ length: Math.ceil(text.length / CHUNK_BYTES) }, keystream));
    const stream = joined(...blocks.map((block) => new Uint8Array(block)));
    return text.map((byte, index) => byte ^ stream[index]);
  }
}

function nameOf(direction, asked, answered = new Uint8Array(NONCE_BYTES), number = 0) {
  return joined(Uint8Array.of(direction), asked, answered, fourBytes(number));
}

/** Exact amounts of bytes from a stream. */
class Reader {
  #stream;
  #held = new Uint8Array();

  constructor(body) {
    this.#stream = body.getReader();
  }

  async take(count) {
    while (this.#held.length < count) {
      const { done, value } = await this.#stream.read();
      if (done) throw new Error("the answer ended too early");
      this.#held = joined(this.#held, value);
    }
    const taken = this.#held.slice(0, count);
    this.#held = this.#held.subarray(count);
    return taken;
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}

/** The key of the address, kept for a reload and for other tabs, and taken out of the address. */
async function sealFromAddress() {
  const found = /^#key=([\w-]+)$/.exec(location.hash);
  if (found) {
    history.replaceState(null, "", location.pathname + location.search);
    store("key", found[1]);
    if (stored("key-of-session") !== found[1]) {
      store("session", toText(random(SESSION_BYTES)));
      store("key-of-session", found[1]);
    }
  }
  const key = stored("key");
  return key ? Seal.from(toBytes(key), toBytes(stored("session"))) : null;
}

const memory = new Map(); // for a browser that stores nothing

function stored(name) {
  try {
    return memory.get(name) ?? localStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  memory.set(name, value);
  try {
    localStorage.setItem(name, value);
  } catch {
    // then a reload needs the whole address again
  }
}

const random = (count) => crypto.getRandomValues(new Uint8Array(count));
const toText = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
const toBytes = (text) =>
  Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));

function fourBytes(number) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, number);
  return bytes;
}

function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

const seals = sealFromAddress();
