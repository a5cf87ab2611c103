// Who is logged in here: a cookie that scripts cannot read, and a key that only this origin has.
import { signal } from "@preact/signals";

const item = "gatehouse.key";
const channel = new BroadcastChannel("gatehouse-key");

/**
 * @typedef {object} Person
 * @property {string} user
 * @property {string[]} roles
 * @property {boolean} [admin]
 * @property {string} way
 * @property {boolean} person whether this login may decide about approvals
 * @property {string} [login]
 * @property {string} [proof]
 * @property {string} [expires]
 */

/** Who this page acts for; null until it is known, false if nobody has logged in and somebody must. */
export const me = signal(/** @type {Person | null | false} */ (null));

let key = sessionStorage.getItem(item) ?? localStorage.getItem(item) ?? "";

channel.onmessage = ({ data }) => {
  if (data.kind === "ask" && key) channel.postMessage({ kind: "key", key });
  if (data.kind === "key" && !key) {
    key = data.key;
    sessionStorage.setItem(item, key);
    if (me.value === false || me.value?.way === "anonymous") identify();
  }
  if (data.kind === "over" && data.key === key && key) forget();
};

/** Returns the headers that identify the user. @returns {Record<string, string>} */
export function credentials() {
  return key ? { "Gatehouse-Key": key } : {};
}

/** Reports whether this page holds a key. */
export function hasKey() { return key !== ""; }

/**
 * Sends a request to an endpoint of logins, and returns its status and its answer.
 * @param {string} method @param {string} path @param {any} [body]
 * @returns {Promise<{status: number, body: any}>}
 */
export async function ask(method, path, body) {
  const answer = await fetch(path, {
    method, cache: "no-store", credentials: "same-origin",
    headers: { ...credentials(), "Accept": "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let parsed = {};
  try { parsed = JSON.parse(text); } catch { /* a 404 of an older host, or no body */ }
  return { status: answer.status, body: parsed };
}

/** Takes the answer of a login. @param {any} answer */
export async function accept(answer) {
  key = answer.key;
  sessionStorage.setItem(item, key);
  if (answer.lasting) localStorage.setItem(item, key);
  await identify();
}

/** Finds out who this page acts for. */
export async function identify() {
  const { status, body } = await ask("GET", "/auth/me");
  if (status === 200 && body.user !== undefined) me.value = body;
  else if (status === 401) await lost();
  else me.value = { user: "anonymous", roles: [], way: "anonymous", person: false };
  if (!key) channel.postMessage({ kind: "ask" });
}

/** Without a valid login: asks the other pages of this browser for theirs, then the user. */
async function lost() {
  const had = key;
  if (had) drop();
  channel.postMessage({ kind: "ask" });
  await new Promise((done) => { setTimeout(done, 200); });
  if (key && key !== had) return identify();
  me.value = false;
}

function drop() {
  key = "";
  sessionStorage.removeItem(item);
  localStorage.removeItem(item);
}

/** Forgets the login of this page, which is over. */
export function forget() {
  drop();
  me.value = false;
}

/** Ends the login, here and in the other pages of this browser. */
export async function logout() {
  await ask("POST", "/auth/logout");
  channel.postMessage({ kind: "over", key });
  drop();
  location.hash = "";
  location.reload();
}

/** Takes a one-time code out of the address before anything else can read it. */
export function codeInAddress() {
  const code = /^#login=([A-Za-z0-9_-]+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}
