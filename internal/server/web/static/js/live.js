// One event stream for all pages of a browser: one of them leads, holds the stream and passes on what comes.
//
// The leader is the shared worker, and where there is none the page that holds a lock. Pages and leader
// talk over a BroadcastChannel. Each page holds a lock of its own, by which the leader sees that it is gone.
import { Client } from "./rpc.js";

const channelName = "gatehouse-live";

/**
 * @typedef {object} Want what a page follows
 * @property {string} endpoint
 * @property {Record<string, string>} credentials headers
 * @property {string[]} uris of resources
 * @property {string[]} tasks
 */

/** Leads when no other page does, until this page or worker ends. */
export function lead() {
  navigator.locks.request("gatehouse-stream", () => new Leader().run());
}

class Leader {
  constructor() {
    /** @type {Map<string, Want>} */
    this.tabs = new Map();
    this.channel = new BroadcastChannel(channelName);
    /** @type {AbortController | undefined} */
    this.stream = undefined;
    this.open = "";
    this.tries = 0;
    this.connected = false;
    /** @type {any} */
    this.timer = undefined;
  }

  run() {
    this.channel.onmessage = ({ data }) => {
      if (data.kind === "want") this.want(data.tab, data.want);
      if (data.kind === "retry" && !this.connected) { this.tries = 0; this.reopen(true); }
    };
    this.channel.postMessage({ kind: "hello" });
    return new Promise(() => {});
  }

  /** @param {string} tab @param {Want} want */
  want(tab, want) {
    if (!this.tabs.has(tab)) {
      navigator.locks.request("gatehouse-tab-" + tab, () => {
        this.tabs.delete(tab);
        this.reopen(false);
      });
    }
    this.tabs.set(tab, want);
    if (this.connected) this.say(true);
    this.reopen(false);
  }

  /** @param {boolean} connected */
  say(connected) {
    this.connected = connected;
    this.channel.postMessage({ kind: "state", connected });
  }

  /** Opens the stream that the pages want now, unless it is open. @param {boolean} again */
  reopen(again) {
    const wants = [...this.tabs.values()];
    const last = wants.at(-1);
    const set = last && {
      endpoint: last.endpoint, credentials: last.credentials,
      uris: [...new Set(wants.filter((w) => w.endpoint === last.endpoint).flatMap((w) => w.uris))].sort(),
      tasks: [...new Set(wants.filter((w) => w.endpoint === last.endpoint).flatMap((w) => w.tasks))].sort(),
    };
    const key = set ? JSON.stringify(set) : "";
    if (key === this.open && !again) return;
    this.open = key;
    clearTimeout(this.timer);
    this.stream?.abort();
    this.stream = undefined;
    if (set) this.follow(set);
  }

  /** @param {Want} want */
  async follow(want) {
    const ended = this.stream = new AbortController();
    const client = new Client(() => want.credentials, () => this.channel.postMessage({ kind: "refused" }));
    try {
      await client.request(want.endpoint, "subscriptions/listen", {
        notifications: {
          toolsListChanged: true, resourcesListChanged: true, resourceSubscriptions: want.uris,
          ...(want.tasks.length > 0 ? { taskIds: want.tasks } : {}),
        },
      }, {
        signal: ended.signal,
        onNote: (note) => {
          if (note.method === "notifications/subscriptions/acknowledged") {
            this.tries = 0;
            this.say(true);
          }
          this.channel.postMessage({ kind: "note", note });
        },
      });
    } catch (e) {
      if (ended.signal.aborted) return;
    }
    if (ended.signal.aborted) return;
    this.say(false);
    const pause = Math.min(250 * 2 ** this.tries++, 15000) * (0.75 + Math.random() / 2);
    this.timer = setTimeout(() => this.reopen(true), pause);
  }
}

/** A page's end of the stream. */
export class Follower {
  /**
   * @param {object} on
   * @param {(note: {method: string, params: any}) => void} on.note
   * @param {(connected: boolean) => void} on.state
   * @param {() => void} on.refused
   * @param {string} worker the address of the shared worker's module
   */
  constructor(on, worker) {
    this.tab = Math.random().toString(36).slice(2);
    this.channel = new BroadcastChannel(channelName);
    /** @type {Want | undefined} */
    this.wanted = undefined;
    navigator.locks.request("gatehouse-tab-" + this.tab, () => {
      this.channel.onmessage = ({ data }) => {
        if (data.kind === "hello") this.send();
        if (data.kind === "note") on.note(data.note);
        if (data.kind === "state") on.state(data.connected);
        if (data.kind === "refused") on.refused();
      };
      this.send();
      this.begin(worker);
      return new Promise(() => {});
    });
    addEventListener("online", () => this.channel.postMessage({ kind: "retry" }));
  }

  /** @param {string} address */
  begin(address) {
    if (typeof SharedWorker === "undefined") return lead();
    const worker = new SharedWorker(trustedScript(address), { type: "module", name: "gatehouse" });
    worker.onerror = () => lead();
    worker.port.start();
  }

  /** Says what this page follows from now on. @param {Want} want */
  want(want) {
    this.wanted = want;
    this.send();
  }

  send() {
    if (this.wanted) this.channel.postMessage({ kind: "want", tab: this.tab, want: this.wanted });
  }
}

/** @type {any} */
let policy;

/**
 * Returns the address of a script of this server as Trusted Types demand it; "gatehouse" is the one policy
 * that the Content-Security-Policy admits, and these the scripts that a page starts by their addresses.
 * @param {string} address @returns {any}
 */
export function trustedScript(address) {
  const types = /** @type {any} */ (globalThis).trustedTypes;
  if (!types) return address;
  policy ??= types.createPolicy("gatehouse", {
    createScriptURL: (/** @type {string} */ url) => {
      if (!["./worker.js", "../push.js"].some((own) => url.split("?")[0] === new URL(own, import.meta.url).href)) throw new TypeError("not a script of these pages");
      return url;
    },
  });
  return policy.createScriptURL(address);
}
