// All texts of the pages.

/** @param {number} n @param {string} one @param {string} many */
const count = (n, one, many) => `${n.toLocaleString("en-US")} ${n === 1 ? one : many}`;

export const T = {
  pages: {
    now: "Now", approvals: "Approvals", review: "Review", tools: "Tools", packages: "Packages", ledger: "Ledger", contexts: "Contexts",
    sandboxes: "Sandboxes", processes: "Processes", state: "State", measures: "Measures", people: "People", settings: "Settings",
    doctor: "Doctor", connect: "Connect a client",
  },
  groups: { watch: "Watch", use: "Use", govern: "Manage" },
  navigation: "Pages", skip: "Skip to the page", menu: "Menu", close: "Close", theme: "Change the theme", themes: { light: "Light", dark: "Dark", system: "As the system" },
  search: "Search", palette: "Search pages and tools", paletteHint: "Go to a page, or find a tool", nothingFound: "Nothing found",
  live: "Live", reconnecting: "Reconnecting", connecting: "Connecting", offline: "The server cannot be reached. What you see may be old; this page reconnects by itself.",
  readOnly: "You may look here, but not change anything.",
  account: "Account", logOut: "Log out", logIn: "Log in", loggedInAs: (/** @type {string} */ u) => `Logged in as ${u}`, anonymous: "Not logged in",
  login: {
    title: "Log in", user: "User", password: "Password", keep: "Stay logged in on this machine", with: (/** @type {string} */ t) => `Log in with ${t}`,
    passkey: "Log in with a passkey", or: "or", code: "Pairing code", pair: "Add the first user", pairMore: "This host has no user yet. The pairing code was printed where the host was started.",
    link: "On the machine of the host, gatehouse ui opens this page logged in.", failed: "The login did not succeed.",
    other: (/** @type {string} */ user) => `You are logged in as ${user}. End that, and log in by this link?`,
    linkOver: "This link is not valid any more: each can be used once, within two minutes.", welcome: "Manage the tools of your agents.", lost: "Your login is over. Log in again.",
  },
  justNow: "now", ago: (/** @type {string} */ s) => `${s} ago`, copied: "Copied", copy: "Copy", code: "Code", text: "Text", none: "none", yes: "yes", no: "no", table: "Table",
  hiddenCharacter: "A character that does not show", required: "required", noArguments: "This tool takes no arguments.", choose: "Choose…", onePerLine: "One per line", anyJson: "JSON",
  defaultIs: (/** @type {string} */ d) => `Default: ${d}`, showAs: "Show as", view: "View", form: "Form", failed: "Failed", succeeded: "Succeeded", read: "Read",
  notShown: (/** @type {string} */ m) => `Content of the type ${m || "unknown"} is not shown here.`, imageOfResult: "Image in the result", moreRows: (/** @type {number} */ n) => `Show more (${n.toLocaleString("en-US")})`,
  toolCount: (/** @type {number} */ n, /** @type {number} */ all) => n === all ? count(all, "tool", "tools") : `${n.toLocaleString("en-US")} of ${count(all, "tool", "tools")}`,
  context: "Context", defaultContext: "default", searchTools: "Search tools", reads: "reads", writes: "writes", destroys: "can destroy", idempotent: "repeatable", openWorld: "reaches out",
  chooseTool: "Choose a tool", chooseToolMore: "Its arguments become a form; the answer shows below it.", arguments: "Arguments", call: "Call", cancel: "Cancel", cancelled: "The call was cancelled.",
  missing: (/** @type {string} */ n) => `Still needed: ${n}`, result: "Result", running: "Running…", progress: "Progress", log: "Log", command: "Command", sameCall: "The same call",
  task: (/** @type {string} */ s) => ({ working: "Runs as a job…", input_required: "Has a question…" })[s] ?? s,
  question: { title: "A question", send: "Send", decline: "Decline", link: "The tool asks you to open this address. It belongs to somebody else:", open: "Open", done: "I have done it" },
  now: {
    sub: "What happens on this host", waiting: "Waits for a yes", calls: "Calls", sessions: "Sessions", jobs: "Jobs", packages: "Packages", sandboxes: "Sandboxes", processes: "Processes",
    machine: "Machine", cpu: "Processor", memory: "Memory", disk: "Disk", up: "Running since", version: "Version", platform: "Platform", noCalls: "No calls yet", noCallsMore: "Calls of agents and people appear here as they happen.",
    nothing: "No jobs, processes, sandboxes or sessions at the moment.", allWell: "All is well", degraded: "Degraded", modules: "Modules", see: "See all", events: "Changes", eventsMore: "of the live state", noEvents: "Nothing has changed since you opened this page",
  },
  refresh: "Refresh", actions: "Actions", save: "Save", saved: "Saved", changes: "Changes",
  approvals: {
    sub: "Calls that wait for a person", waiting: "Waiting", all: "All", none: "Nothing waits for you", noneMore: "A call that a rule holds back appears here with all of its arguments.",
    onlyPeople: "Only a person's login may decide here, never the credential that made the call. Log in, or open this page with gatehouse ui.",
    approved: "Approved", denied: "Denied", mine: "made by this login", until: "until", by: "Asked by", rule: "Held by", decidedBy: "Decided by", passphrase: "Passphrase", once: "Approve once", deny: "Deny",
    always: "Always…", alwaysMore: "This rule goes first in the settings; from then on such calls are not held.", addRule: "Approve, and add this rule",
  },
  alerts: {
    title: "Alerts", waits: "A call waits for approval", expires: "A staged task expires soon", about: "A browser is told that a call waits, also while this page is closed. It gets a link and nothing about the call.",
    impossible: "This browser has no Web Push here: it needs https or localhost.", refused: "This browser does not allow notifications from this page.",
    here: "Alert this browser", test: "Try", remove: "End", browser: "Browser", user: "User", service: "Push service", since: "Since", webhook: "A webhook is told as well.",
    sent: (/** @type {number} */ n) => `${count(n, "alert", "alerts")} delivered`,
  },
  review: {
    sub: "What staged calls have changed, apart from the folders until a person accepts it", waiting: "Waiting", all: "All", none: "Nothing to review", noneMore: "Calls that a rule or a context stages collect here as tasks.",
    onlyPeople: "Only a person's login may accept or refuse, never the credential that made the calls. Log in, or open this page with gatehouse ui.",
    state: "State", by: "Made by", client: "Client", folders: "Folders", last: "Last call", expires: "Expires", etag: "Changes", note: "Note", files: (/** @type {number} */ n) => `Files (${n.toLocaleString("en-US")})`, noFiles: "It changes no file.",
    omitted: (/** @type {number} */ n) => `${count(n, "further change", "further changes")} not shown. Accept all includes them.`, objects: (/** @type {number} */ n) => count(n, "file or folder of git objects", "files and folders of git objects"), linked: (/** @type {string} */ p) => `the same file as ${p}`, conflict: (/** @type {string} */ w) => `Conflict: ${w}`,
    programs: "Programs", hosts: "Hosts", secrets: "Secrets", packages: "Packages", none2: "none", direct: "not staged", denied: "refused", times: (/** @type {number} */ n) => `${n}×`, calls: "Calls",
    choose: (/** @type {string} */ p) => `Accept ${p}`, chooseAll: "Choose all", acceptAll: "Accept all", acceptSome: (/** @type {number} */ n) => `Accept chosen (${n})`, refuse: "Refuse", undo: "Undo what was accepted", branch: "Branch of a commit", acceptBranch: "Commit to the branch",
    sureRefuse: "Refuse: drop all of it", accepted: (/** @type {number} */ n, /** @type {string} */ who) => `Accepted ${count(n, "name", "names")} by ${who}`, undone: (/** @type {number} */ n, /** @type {string} */ who) => `Undone ${count(n, "name", "names")} by ${who}`, refused: "Refused", history: "Decisions", left: "Left alone",
  },
  ledger: {
    sub: "What was done on this host, and by whom", filter: "Filter: tool:file_read outcome:denied", follow: "Follow", verify: "Verify", export: "Export", exported: "Exported", none: "No lines",
    help: "Filters: principal: tool: outcome: level: kind: context: session: call: since: until:", sound: (/** @type {number} */ n) => `The chain of ${count(n, "line", "lines")} is whole.`,
    broken: (/** @type {number} */ n) => `The ledger has ${count(n, "problem", "problems")}:`, line: (/** @type {number} */ n) => `Line ${n}`,
  },
  packages: {
    sub: "Servers of others, and what they may do", installed: "Installed", find: "Find", findMore: "What should it do? GitHub, PostgreSQL, calendar…", none: "No packages yet", noneMore: "Find one, and see what it asks for before it is installed.",
    tools: (/** @type {number} */ n) => count(n, "tool", "tools"), quarantined: (/** @type {number} */ n) => `${n} held back`, login: "needs a login", install: "Install", installTitle: (/** @type {string} */ t) => `Install ${t}`, begun: "The installation has begun",
    id: "Name on this host", env: "Environment, one per line", asks: "What it asks for", start: "Start", stop: "Stop", restart: "Restart", remove: "Remove", doLogin: "Log in", phases: "Installation", about: "About", changes: "Changes", logs: "Logs",
    state: "State", source: "Source", confinement: "Confinement", protocol: "Protocol", calls: "Calls", restarts: "Restarts", digest: "Digest", installedAt: "Installed", by: "By", may: "What it may do", description: "Description", offered: "Offered",
    noChanges: "Nothing is held back", noChangesMore: "What a package's tools say is pinned; a change waits here.", approve: "Approve", refuse: "Refuse",
  },
  contexts: {
    sub: "Named views of this host: what each shows, and to whom", default: "default", choose: "Choose a context", sees: (/** @type {string} */ c, /** @type {number} */ n) => `${c} sees ${count(n, "tool", "tools")}`, compare: "Compare with", onlyIn: (/** @type {string} */ c) => `only in ${c}`,
    definition: "Definition", fixed: "from the settings", try: "Try as another", roles: "Roles", tool: "Tool", check: "Check", listed: "is listed", notListed: "is not listed",
  },
  sandboxes: {
    sub: "Isolated machines for code", create: "New sandbox", pool: "Pool", driver: "Driver", drivers: "Drivers here", yours: "Yours", ready: "Ready", booting: "Booting", hits: "From the pool", claim: "Time to get one", held: "What holds here", none: "No sandboxes", noneMore: "Agents make them when they run code.",
    sandbox: "Sandbox", state: "State", isolation: "Isolation", created: "Created", destroy: "Destroy", use: "Limits and use", files: "Files", command: "Command", terminal: "Terminal", newTerminal: "New terminal", noTerminal: "No terminal is open in this sandbox.", network: "Network", peak: "Peak memory", calls: "Calls", expires: "Expires", limits: "Limits", name: "Name", size: "Size", mode: "Mode",
    decisions: "Decisions", allowed: "allowed", denied: "denied", target: "Target", why: "Why", rules: "Rules",
  },
  processes: {
    sub: "Programs that calls have started", terminal: "New terminal", none: "No processes", noneMore: "Programs that outlive their call are listed here.", command: "Command", status: "Status", started: "Started", ports: "Ports", stop: "Stop", remove: "Remove", output: "Output", program: "Program", start: "Start",
    ended: (/** @type {number | undefined} */ code) => `[ended${code === undefined ? "" : " with exit code " + code}]`,
  },
  state: { sub: "The live tree; changes light up", filter: "Filter" },
  measures: { sub: "Calls, errors and times", by: "By", range: "Range", tool: "Tool", principal: "Person", package: "Package", calls: "Calls", errors: "Errors", times: "Time per call (ms)", bytesOut: "Bytes out", tokens: "Tokens", none: "No calls in this range", all: "all" },
  people: {
    sub: "Who may use this host, and how they log in", users: "Users", tokens: "Tokens", logins: "Logins", secrets: "Secrets", name: "Name", roles: "Roles", password: "Password", created: "Created", remove: "Remove", add: "Add", user: "User", scopes: "Scopes", until: "Until", never: "never", used: "Last used",
    noUsers: "No users yet", noUsersMore: "Until there is one, programs of this machine's user administer the host.", noTokens: "No tokens yet", noTokensMore: "A token lets a program act for a user.", noSecrets: "No secrets yet", noSecretsMore: "Settings and packages name secrets; their values are never shown.", revoke: "Revoke", set: "Set", once: "This is shown once. Keep it somewhere safe.", current: "this one", browser: "Browser", end: "End",
    passkeys: "Passkeys", passkeyName: "Name of the passkey", addPasskey: "Add a passkey", origin: "Works at", decides: "Approves calls", afterRestart: "after a restart of the host",
  },
  app: {
    view: "View", from: "made by the package", reaches: "it may reach", reachesNothing: "it reaches nothing but its own server", title: (/** @type {string} */ t) => `View of ${t}`,
    notAView: "This tool's view is not a document of an MCP App.", tooMany: "too many requests: wait until some are answered", tooLarge: "the message is too large",
    noMethod: (/** @type {string} */ m) => `this host does not offer ${m} to views`, noTool: (/** @type {string} */ n) => `the server of this view has no tool ${n} for you`, refused: "the person has refused this call",
    calls: "The view wants to call a tool", callsMore: (/** @type {string} */ p, /** @type {string} */ t) => `The view of ${p} calls ${t} for you, with these arguments:`,
    link: "The view wants to open a page", linkMore: (/** @type {string} */ p) => `The view of ${p} opens this address in a new tab:`, once: "Allow once", always: "Allow until it is closed", refuse: "Refuse",
  },
  settings: { file: (/** @type {string} */ f) => `From ${f}`, noFile: "No settings file is in use", onlySet: "Only what is set", search: "Search settings", restart: "These wait for a restart:", live: "applies at once", needsRestart: "after a restart", secret: "A secret is not shown.", clear: "Back to the default" },
  doctor: { sum: (/** @type {number} */ ok, /** @type {number} */ warn, /** @type {number} */ fail) => `${ok} fine, ${warn} to know, ${fail} failed`, again: "Check again" },
  connect: { sub: "Point an agent at this host", one: "1. Who it acts for", two: "2. What to put into its settings", token: "Make a token", made: "The token is in the text below. It is shown once, and good for 90 days.", tokenMore: "A token lets a client act for you, in the context that you choose.", tokenAsk: "Replace TOKEN by a token; an administrator makes one with gatehouse token create.", client: "Client", local: "This machine", localMore: "For clients that start their servers", atPrompt: "At a prompt", setup: "On this machine, gatehouse setup does this for each client that is installed." },
};
