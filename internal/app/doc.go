// Package app builds every subsystem of a host, gives each what it needs, and
// stops them in reverse order.
//
// It is the only package that imports all others. New acquires: it opens
// folders, files and listeners. Run serves and returns when all goroutines of
// the host have ended. Only the Go API, cli and tests import app. Begin with
// New: its list of parts is the architecture, in the order of starting.
//
// # The path of a call
//
// A client sends
//
//	{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"file_read","arguments":{"path":"a.txt"}}}
//
// A server (server/stdio, server/httpserver or server/socket) reads the bytes.
// It limits their number, identifies the peer as far as the connection allows,
// and splits the stream into messages. It knows no tool and no version of the
// protocol.
//
// mcp/protocol reads the message. It checks the JSON, determines which version
// of the Model Context Protocol the message speaks and whether it belongs to a
// session. The facts about the client come from mcp/session for the older
// versions; with the newest they are in the message itself.
//
// dispatch/views returns the caller's view: the tools, resources and prompts
// that the caller sees, each with a gate from access/permit that has the rules
// compiled in. Listing and calling ask the same gate.
//
// dispatch finds file_read in the view, brings the arguments into canonical
// form by the tool's schema (strictly, with defaults filled in), asks the gate,
// waits for a free slot, sets the deadline, and sends a request of plain data
// over dispatch/bus.
//
// dispatch/modulehost receives it. It turns the data into a tool.Call, opens
// what the call may use on this machine (the folders of files/roots, a writer
// into dispatch/spool, questions to the user) and runs the handler: here
// modules/file, which reads a.txt through a root that the kernel confines.
//
// The result returns the same way. dispatch checks it against the tool's
// output schema, shortens text that is over its budget and keeps all of it in
// the spool, and publishes that the call has finished. protocol writes the
// answer in the caller's version, and the server sends it.
//
// A handler that asks the user ends its run. protocol carries the question,
// and the handler runs again from the top when the answer has arrived; its
// state is sealed by mcp/seal meanwhile. A call that takes long becomes a job
// in dispatch/jobs, which outlives the request. When the offer of a module
// changes, dispatch/views builds the view again the next time it is needed,
// and protocol notifies the clients.
//
// # Stopping
//
// The servers refuse new work, then sessions end, the engine cancels active
// calls, jobs stop, modules close, and last spool and folders. Each step has
// its own context and deadline. A second signal ends the process at once;
// main does that.
package app
