package housekeeping

// room is a folder with what is below it. A path that ends in /* makes each
// folder below it a room of its own.
type room struct {
	path  string
	only  []string // all of ours it may import; nil means every room on a lower floor
	never []string // what it may not import although it lies lower
	why   string
}

// floors are the rooms of the house from the ground up, those that are built
// and those that are planned. A room imports from lower floors, never from
// its own floor or from above.
var floors = [][]room{
	{
		{path: "tool", only: []string{}, why: "whoever writes a tool needs the standard library and this vocabulary, nothing else"},
		{path: "internal/rawjson", only: []string{}, why: "splicing raw JSON is the ground everything stands on"},
		{path: "internal/procid", only: []string{}, why: "a process is named without knowing who asks or what it does"},
		{path: "internal/plaintext", only: []string{}, why: "what may be shown follows from the text"},
		{path: "internal/filelock", only: []string{}, why: "a file is locked whatever is in it"},
	},
	{
		{path: "internal/privatefile", only: []string{"internal/filelock"}, why: "a file is kept from others whatever is in it"},
	},
	{
		{path: "module", only: []string{"tool"}, why: "the plug-in contract speaks of tools and of nothing inside the house"},
		{path: "internal/schema", why: "a schema follows from a tool's Go types, whoever calls it"},
		{path: "internal/revision", why: "the revisions are data that session, calls and protocol read"},
		{path: "internal/seal", why: "sealing knows bytes and keys, not what they mean"},
		{path: "internal/certs", why: "which certificate is shown follows from files and names, not from who asks"},
		{path: "internal/secret", why: "a secret knows nobody it could tell itself to"},
		{path: "internal/sqlfile", only: []string{"internal/filelock"}, why: "opening a file of records needs to know nothing of what they say"},
	},
	{
		{path: "internal/approvals", only: []string{"internal/sqlfile", "internal/plaintext", "internal/privatefile"}, why: "a yes or no is kept without knowing what asks for it"},
		{path: "internal/printout", only: []string{}, why: "what a call prints is bytes and a Writer"},
		{path: "internal/agreement", only: []string{"tool"}, why: "asking a person needs a call and a question"},
		{path: "internal/ruling", only: []string{"tool"}, why: "who rules is said by the host; what is refused to the others is a tool's"},
		{path: "internal/tidings", only: []string{"module"}, why: "news is told without knowing who reads it"},
		{path: "internal/phases", only: []string{"tool", "module"}, why: "how far something is can be said without knowing what it is"},
		{path: "internal/backup", only: []string{"internal/filelock", "internal/sqlfile", "internal/privatefile", "internal/secret"}, why: "what is on disk is brought away and back without knowing what it says"},
		{path: "internal/update", only: []string{}, why: "a program is replaced the same way whoever asks for it"},
		{path: "internal/metrics", only: []string{"internal/sqlfile"}, why: "what was measured adds up the same way whoever asks"},
		{path: "internal/spool", why: "what is too long to send is kept without knowing who asked for it"},
		{path: "internal/roots", why: "folders are opened the same way for every caller"},
		{path: "internal/filewatch", only: []string{"tool"}, why: "that a file changed is reported without knowing who reads it"},
		{path: "internal/proc", why: "child processes are started and ended the same way for every room"},
		{path: "internal/state", why: "the tree is written by others; it asks nobody"},
		{path: "internal/sandbox", why: "a workshop: modules stand on it, it knows none of them"},
		{path: "internal/rag", why: "a workshop: modules stand on it, it knows none of them"},
		{path: "internal/ml", why: "a workshop: modules stand on it, it knows none of them"},
		{path: "internal/browser", why: "a workshop: modules stand on it, it knows none of them"},
		{path: "internal/edit", only: []string{"tool"}, why: "finding what was meant needs a text and nothing else"},
		{path: "internal/language", why: "a workshop: modules stand on it, it knows none of them"},
		{path: "internal/tree", only: []string{}, why: "walking needs an open root and nothing else of ours"},
		{path: "internal/outline", only: []string{}, why: "what a text defines follows from the text"},
		{path: "internal/reading", only: []string{}, why: "turning documents into text needs their bytes alone"},
		{path: "internal/command", only: []string{}, why: "what a command line says follows from its text"},
		{path: "internal/terminal", only: []string{}, why: "what is on a screen follows from what was written to it"},
	},
	{
		{path: "internal/jobs", why: "a job outlives the request and the session it came from, so it knows neither"},
		{path: "internal/sandbox/process", only: []string{"internal/sandbox", "internal/proc"}, why: "code without a wall around it is a process of the host like any other"},
		{path: "internal/search", why: "a workshop: it walks and matches, whoever asks"},
	},
	{
		{path: "internal/bus", why: "the bus carries plain data and knows none of those who ride it"},
		{path: "internal/hub", only: []string{"tool"}, why: "messages are passed to clients of one owner, whatever they are about and whoever sends them"},
	},
	{
		{path: "internal/permit", why: "a decision is made from facts and rules, not from the room that asks"},
		{path: "internal/modules", why: "what runs modules knows none of them"},
		{path: "internal/limit", why: "slowing down needs a key and a clock"},
		{path: "internal/audit", why: "what is remembered comes from above; the ledger asks nobody"},
		{path: "internal/identity", why: "who is asking is settled before anything is known of what is asked"},
	},
	{
		{path: "internal/session", why: "there is no session below session: calls are given facts, not sessions"},
	},
	{
		{path: "internal/contexts", why: "a view says what is seen, calls say what is done"},
	},
	{
		{path: "internal/calls", why: "the one path of every call knows neither the wire nor a revision"},
		{path: "internal/contextbook", never: []string{"internal/session", "internal/bus"},
			why: "the book says which contexts there are; it serves nobody"},
	},
	{
		{path: "internal/protocol", why: "the protocol knows no module and no door"},
	},
	{
		{path: "internal/transport/newline", only: []string{"internal/rawjson"}, why: "splitting bytes into lines finds the id of a line that is too long, and knows nothing else of what it says"},
		{path: "internal/transport/http/h1", only: []string{}, why: "a server of HTTP knows nothing of what is served"},
	},
	{
		{path: "internal/transport/*", never: []string{"internal/calls", "internal/contexts", "internal/permit"},
			why: "a door moves bytes; the protocol stands between it and the calls"},
		{path: "internal/packages", why: "other people's servers are reached through the protocol, as its client"},
	},
	{
		{path: "internal/config", why: "one plain struct per room, filled before any room is built"},
		{path: "internal/observe", why: "watched rooms do not know who watches"},
		{path: "internal/daemon", why: "life in the background wraps the host, it does not build it"},
		{path: "internal/web", why: "pages for people stand beside the doors"},
	},
	{
		{path: "internal/modules/*", only: workshops,
			why: "modules meet in calls, with the caller's view, gate and limits; they import the contract and the workshops they stand on, never each other"},
	},
	{
		{path: "internal/modules/standard", only: append([]string{"internal/modules/*"}, workshops...),
			why: "the guest list names modules and does nothing else"},
	},
	{
		{path: "internal/app", why: "app builds every room, so only those who start a host import it"},
	},
	{
		{path: ".", why: "the public door for Go programs stands on app"},
	},
	{
		{path: "internal/cli", why: "commands start hosts; nobody starts commands"},
	},
	{
		{path: "cmd/*", only: []string{"internal/cli"}, why: "a command is arguments in, exit code out"},
	},
}

// workshops are what a module may stand on.
var workshops = []string{
	"tool", "module", "internal/rawjson", "internal/filelock", "internal/privatefile", "internal/schema", "internal/secret", "internal/roots", "internal/spool",
	"internal/proc", "internal/jobs", "internal/backup", "internal/agreement", "internal/ruling", "internal/tidings", "internal/printout", "internal/phases", "internal/update", "internal/metrics", "internal/hub", "internal/state", "internal/sandbox", "internal/rag", "internal/ml", "internal/browser", "internal/language", "internal/edit",
	"internal/packages", "internal/tree", "internal/outline", "internal/reading", "internal/search", "internal/terminal", "internal/command", "internal/contextbook", "internal/filewatch",
}

// testOnly are the rooms that only tests, generators and each other import.
// They may look everywhere.
var testOnly = []string{
	"module/moduletest", "internal/hosttest", "internal/conformance", "internal/housekeeping", "internal/sandbox/sandboxtest", "internal/state/statelogtest", "internal/packages/packagestest", "internal/hosttest/wallclock",
}

// testOnlyModules are other people's Go modules that must not be in the
// product: peers and counterparts to test against.
var testOnlyModules = map[string]string{
	"github.com/modelcontextprotocol/go-sdk": "the protocol engine is our own; the official SDK stays in tests as counterpart",
	"github.com/mark3labs/mcp-go":            "a peer to measure against, not a part",
	"github.com/rogpeppe/go-internal":        "script tests of the binary, not the binary",
}
