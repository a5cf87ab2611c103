package repotest

// unit is a folder with everything below it, for the import rules. A path that ends in /* makes each folder below
// it a unit of its own.
type unit struct {
	path  string
	only  []string // the only units of ours that it may import; nil means every unit on a lower layer
	never []string // units on lower layers that it must not import
	why   string   // the reason, printed by a failing test
}

// layers are the units from the bottom up. A unit imports from lower layers,
// never from its own layer or from above.
var layers = [][]unit{
	{
		{
			path: "tool",
			only: []string{},
			why:  "the author of a tool needs the standard library and this package, nothing else",
		},
		{path: "internal/mcp/rawjson", only: []string{}, why: "splicing raw JSON depends on nothing else"},
		{path: "internal/exec/keeper", only: []string{}, why: "a keeper starts before the packages of the host do"},
		{
			path: "internal/exec/overlay",
			only: []string{},
			why:  "a view of folders starts before the packages of the host do",
		},
		{path: "internal/exec/builds", only: []string{}, why: "the errors in an output follow from the output"},
		{path: "internal/exec/rpc", only: []string{}, why: "messages are exchanged the same way whatever they ask"},
		{path: "internal/exec/procid", only: []string{}, why: "identifying a process does not depend on its use"},
		{
			path: "internal/access/displaytext",
			only: []string{},
			why:  "whether text is safe to display follows from the text",
		},
		{
			path: "internal/files/fusemount",
			only: []string{},
			why:  "a tree of files is mounted without knowing what they hold",
		},
		{path: "internal/files/filelock", only: []string{}, why: "a file is locked the same way whatever it holds"},
		{path: "internal/files/merged", only: []string{}, why: "a folder is read with its changes whoever made them"},
	},
	{
		{
			path: "internal/files/atomicfile",
			only: []string{"internal/files/filelock"},
			why:  "a private file is written the same way whatever it holds",
		},
	},
	{
		{
			path: "internal/exec/idelink",
			only: []string{"internal/exec/rpc"},
			why:  "editors and agents find each other the same way whatever they say",
		},
		{path: "module", only: []string{"tool"}, why: "the plug-in contract depends on tools and on nothing internal"},
		{path: "internal/mcp/schema", why: "a schema follows from a tool's Go types, not from the caller"},
		{path: "internal/mcp/mcpversion", why: "the versions are data that session, dispatch and protocol read"},
		{path: "internal/mcp/seal", why: "sealing handles bytes and keys, not their meaning"},
		{
			path: "internal/mcp/newline",
			only: []string{"internal/mcp/rawjson"},
			why:  "splitting bytes into lines needs only the id of a line that is too long",
		},
		{
			path: "internal/exec/cpushare",
			only: []string{"internal/exec/procid"},
			why:  "processors are divided among names, whatever runs",
		},
		{path: "internal/access/certs", why: "the certificate follows from files and names, not from the caller"},
		{path: "internal/access/passkey", why: "what an authenticator signs is verified without knowing users"},
		{path: "internal/access/secret", why: "a secret must not depend on code that could print it"},
		{
			path: "internal/files/sqlfile",
			only: []string{"internal/files/filelock"},
			why:  "opening a database file does not depend on its tables",
		},
	},
	{
		{
			path: "internal/cli/clientconfig",
			only: []string{
				"internal/files/atomicfile", "internal/files/filelock", "internal/access/displaytext",
				"internal/access/secret",
			},
			why: "the files of clients follow from their documentation, not from a host",
		},
		{
			path: "internal/access/approvals",
			only: []string{"internal/files/sqlfile", "internal/access/displaytext", "internal/files/atomicfile"},
			why:  "a decision is stored without knowing what asked for it",
		},
		{
			path: "internal/access/alert",
			only: []string{"internal/files/atomicfile", "internal/files/filelock"},
			why:  "a link is sent without knowing what waits behind it",
		},
		{path: "internal/access/confirm", only: []string{"tool"}, why: "asking the user needs a call and a question"},
		{
			path: "internal/access/operator",
			only: []string{"tool"},
			why:  "the host says who is an administrator; a tool says what is refused to others",
		},
		{path: "internal/dispatch/delayed", only: []string{}, why: "the output of a call is bytes and a Writer"},
		{
			path: "internal/dispatch/toolsearch",
			only: []string{"tool", "internal/files/atomicfile"},
			why:  "it ranks texts, whoever may call the tools that they describe",
		},
		{
			path: "internal/dispatch/notify",
			only: []string{"module"},
			why:  "a notification is sent without knowing its readers",
		},
		{
			path: "internal/dispatch/progress",
			only: []string{"tool", "module"},
			why:  "progress does not depend on the work",
		},
		{path: "internal/dispatch/spool", why: "long output is kept without knowing which tool made it"},
		{
			path: "internal/maintenance/backup",
			only: []string{
				"internal/files/filelock",
				"internal/files/sqlfile",
				"internal/files/atomicfile",
				"internal/files/fusemount",
				"internal/access/secret",
			},
			why: "files are saved and restored without knowing their meaning",
		},
		{
			path: "internal/maintenance/update",
			only: []string{"internal/files/atomicfile"},
			why:  "the program is replaced the same way for every caller",
		},
		{
			path: "internal/telemetry/metrics",
			only: []string{"internal/files/sqlfile"},
			why:  "measurements are summed the same way for every caller",
		},
		{
			path: "internal/files/stage",
			only: []string{
				"tool", "internal/exec/overlay", "internal/files/atomicfile", "internal/files/filelock",
				"internal/files/merged",
			},
			why: "what changed in folders is kept apart the same way for every caller",
		},
		{path: "internal/files/roots", why: "folders are opened the same way for every caller"},
		{
			path: "internal/files/filewatch",
			only: []string{"tool"},
			why:  "a change of a file is reported without knowing its readers",
		},
		{
			path: "internal/files/edit",
			only: []string{"tool"},
			why:  "finding the place of an edit needs the text and nothing else",
		},
		{
			path: "internal/files/embed",
			only: []string{"internal/access/secret"},
			why:  "the vector of a text follows from the text and the model",
		},
		{
			path: "internal/files/vectorstore",
			only: []string{"internal/access/secret"},
			why:  "a server of vectors is given numbers and vectors, and no texts",
		},
		{path: "internal/files/language", why: "the language of a text follows from the text"},
		{
			path: "internal/files/walk",
			only: []string{"internal/files/merged"},
			why:  "walking needs an open folder and nothing else of ours",
		},
		{
			path: "internal/files/symbols",
			only: []string{"internal/access/displaytext"},
			why:  "the definitions in a text follow from the text",
		},
		{
			path: "internal/files/extract",
			only: []string{"internal/access/displaytext"},
			why:  "extracting text needs the bytes of the document alone",
		},
		{path: "internal/exec/shield", only: []string{}, why: "closing folders to a child needs their paths alone"},
		{
			path: "internal/exec/shellpolicy",
			only: []string{"internal/access/displaytext"},
			why:  "the commands of a command line follow from its text",
		},
		{path: "internal/exec/terminal", only: []string{}, why: "the screen follows from the bytes written to it"},
		{
			path: "internal/cluster",
			only: []string{"internal/cluster/rawconn", "internal/files/atomicfile"},
			why:  "nodes agree on bytes; what they mean is known above",
		},
		{path: "internal/state", why: "modules write the tree; it calls none of them"},
		{path: "internal/sandbox", why: "modules use sandboxes; sandboxes know no module"},
	},
	{
		{
			path: "internal/exec/supervisor",
			only: []string{"internal/exec/procid", "internal/exec/shellpolicy", "internal/sandbox"},
			why:  "which programs a line may start follows from its lists and from the kernel's reports",
		},
		{path: "internal/exec/proc", why: "child processes are started and ended the same way for every package"},
		{
			path: "internal/dispatch/jobs",
			why:  "a job outlives the request and the session that started it, so it knows neither",
		},
		{
			path: "internal/files/clientroots",
			only: []string{"tool", "internal/files/roots"},
			why:  "the folders of a client are found the same way for every module",
		},
		{
			path: "internal/files/index",
			only: []string{"internal/files/sqlfile", "internal/files/symbols"},
			why:  "texts are indexed and searched for every caller alike, who reads the files",
		},
		{path: "internal/files/search", why: "searching walks and matches for every caller alike"},
	},
	{
		{
			path: "internal/sandbox/agent/cmd/agent",
			only: []string{"internal/sandbox", "internal/exec/supervisor"},
			why:  "the agent's program gives it what judges the programs of a command",
		},
		{
			path: "internal/exec/acp",
			only: []string{"internal/exec/proc", "internal/exec/rpc"},
			why:  "messages of an editor and an agent are relayed whatever they say",
		},
		{
			path: "internal/sandbox/process",
			only: []string{"internal/sandbox", "internal/exec/proc"},
			why:  "code that is not isolated is a process of the host like any other",
		},
		{
			path: "internal/cluster/statelog",
			only: []string{"internal/cluster", "internal/files/atomicfile", "internal/state"},
			why:  "it stores the changes of mounts as records of a cluster",
		},
		{
			path: "internal/cluster/filelog",
			only: []string{"internal/cluster", "internal/files/atomicfile"},
			why:  "it stores the contents of files as records of a cluster",
		},
		{
			path: "internal/cluster/sqllog",
			only: []string{"internal/cluster", "internal/files/sqlfile"},
			why:  "it stores the changes of files as records of a cluster",
		},
		{path: "internal/dispatch/bus", why: "the bus carries plain data and knows neither sender nor receiver"},
		{
			path: "internal/dispatch/hub",
			only: []string{"tool"},
			why:  "messages are passed to the clients of one owner, whatever their content",
		},
	},
	{
		{
			path: "internal/cluster/nodebus",
			only: []string{"internal/cluster", "internal/dispatch/bus", "tool"},
			why:  "it carries calls between the buses of nodes, whatever they call",
		},
		{
			path: "internal/access/guardrail",
			only: []string{
				"internal/access/secret", "internal/access/displaytext", "internal/exec/proc", "internal/mcp/rawjson",
			},
			why: "what is in a call is judged without knowing the tool",
		},
		{
			path: "internal/access/permit",
			why:  "a decision is made from facts and rules, not from the package that asks",
		},
		{path: "internal/access/limit", why: "a rate limit needs a key and a clock"},
		{path: "internal/access/audit", why: "the ledger receives records; it calls no other package"},
		{path: "internal/access/identity", why: "the principal is known before the request is read"},
		{path: "internal/dispatch/modulehost", why: "the code that runs modules knows none of them"},
	},
	{
		{
			path: "internal/access/resolve",
			only: []string{"tool", "internal/access/permit", "internal/exec/shellpolicy", "internal/files/roots"},
			why:  "what arguments name follows from the arguments and the folders of the caller",
		},
		{
			path: "internal/dispatch/notifier",
			only: []string{
				"internal/access/approvals",
				"internal/access/identity",
				"internal/dispatch/bus",
				"internal/dispatch/notify",
			},
			why: "a notification is made of an event, without knowing its readers",
		},
		{path: "internal/mcp/session", why: "dispatch receives facts, not sessions"},
	},
	{
		{path: "internal/dispatch/views", why: "a view says what the caller sees, dispatch what a call does"},
	},
	{
		{
			path: "internal/dispatch",
			why:  "the path of a call knows neither the transport nor a version of the protocol",
		},
		{path: "internal/dispatch/contextstore", never: []string{"internal/mcp/session", "internal/dispatch/bus"},
			why: "the store keeps contexts; it serves no call"},
	},
	{
		{path: "internal/dispatch/contextmanager", never: []string{"internal/mcp/session", "internal/dispatch/bus"},
			why: "contexts are applied to what serves calls; this serves none"},
		{path: "internal/mcp/protocol", why: "the protocol knows no module and no transport"},
	},
	{
		{
			path: "internal/server/httpserver/h1",
			only: []string{},
			why:  "an HTTP server does not depend on what it serves",
		},
		{
			path: "internal/server/httpserver/hangup",
			only: []string{},
			why:  "it watches connections, whatever they carry",
		},
	},
	{
		{
			path:  "internal/server/*",
			never: []string{"internal/dispatch", "internal/dispatch/views", "internal/access/permit"},
			why:   "a server moves bytes; the protocol stands between it and dispatch",
		},
		{path: "internal/mcp/client", why: "a client speaks the protocol to any server"},
		{
			path: "internal/mcp/client/oauth",
			only: []string{},
			why:  "it authorizes HTTP requests, whatever they carry",
		},
	},
	{
		{
			path: "internal/server/websocket",
			only: []string{
				"tool",
				"internal/access/identity",
				"internal/dispatch/bus",
				"internal/dispatch/hub",
				"internal/mcp/protocol",
				"internal/server/*",
			},
			why: "a WebSocket server moves messages; the host says who may see them",
		},
		{path: "internal/packages", why: "other people's servers are reached through the protocol, as its client"},
	},
	{
		{path: "internal/telemetry", why: "observed packages do not know the observer"},
		{path: "internal/server/daemon", why: "running in the background wraps the host; it does not build it"},
	},
	{
		{path: "internal/modules/*", only: moduleImports,
			why: "modules call each other through dispatch, with the caller's view, gate and limits; " +
				"they never import each other"},
	},
	{
		{
			path: "internal/config",
			why:  "it embeds the settings struct of each subsystem, and is filled before any of them is built",
		},
		{path: "internal/modules/standard", only: append([]string{"internal/modules/*"}, moduleImports...),
			why: "the list of modules names them and does nothing else"},
	},
	{
		{path: "internal/app/core", never: []string{"internal/config", "internal/telemetry", "internal/packages"},
			why: "tests build the core without files and settings"},
	},
	{
		{path: "internal/app", why: "app builds every subsystem, so only code that starts a host imports it"},
	},
	{
		{path: ".", why: "the public API for Go programs is built on app"},
	},
	{
		{path: "internal/cli", why: "commands start hosts; no package starts commands"},
		{
			path: "examples/*",
			only: []string{".", "module", "tool"},
			why:  "an example does what a program outside this repository can do",
		},
	},
	{
		{path: "cmd/*", only: []string{"internal/cli"}, why: "a command is arguments in, exit code out"},
	},
}

// moduleImports are the units that a module may import.
var moduleImports = []string{
	"tool", "module",
	"internal/access/alert", "internal/access/approvals", "internal/access/audit", "internal/access/confirm",
	"internal/access/displaytext",
	"internal/access/identity", "internal/access/operator", "internal/access/passkey",
	"internal/access/permit", "internal/access/secret",
	"internal/dispatch/contextstore", "internal/dispatch/delayed", "internal/dispatch/hub", "internal/dispatch/jobs",
	"internal/dispatch/notify", "internal/dispatch/progress", "internal/dispatch/spool", "internal/dispatch/toolsearch",
	"internal/exec/acp", "internal/exec/builds", "internal/exec/idelink", "internal/exec/overlay", "internal/exec/proc",
	"internal/exec/procid", "internal/exec/rpc",
	"internal/exec/shellpolicy", "internal/exec/supervisor", "internal/exec/terminal",
	"internal/files/atomicfile", "internal/files/edit", "internal/files/extract", "internal/files/filelock",
	"internal/files/filewatch", "internal/files/embed", "internal/files/vectorstore", "internal/files/index",
	"internal/files/language", "internal/files/merged", "internal/files/roots", "internal/files/search", "internal/files/sqlfile",
	"internal/files/stage", "internal/files/symbols",
	"internal/files/walk",
	"internal/maintenance/backup", "internal/maintenance/update",
	"internal/mcp/rawjson", "internal/mcp/schema",
	"internal/packages", "internal/sandbox", "internal/state", "internal/telemetry/metrics",
}

// testOnly are the units that only tests, generators and each other import.
// They may import everything.
var testOnly = []string{
	"module/moduletest", "internal/tests", "internal/sandbox/sandboxtest", "internal/state/statelogtest", "internal/cluster/nodetest", "internal/dispatch/bus/bustest",
	"internal/packages/packagestest", "internal/exec/killtest",
}

// testOnlyModules are Go modules that must not be in the product: peers and counterparts to test against.
var testOnlyModules = map[string]string{
	"github.com/modelcontextprotocol/go-sdk": "the protocol engine is our own; the official SDK stays in tests as counterpart",
	"github.com/mark3labs/mcp-go":            "a peer to measure against, not a part",
	"github.com/rogpeppe/go-internal":        "script tests of the binary, not the binary",
}

// mostFolders is how many folders may be directly below internal.
const mostFolders = 17
