// Package app builds every room of the house, hands each what it needs, and
// stops them in reverse.
//
// It is the one place that imports everyone, and it does nothing else. New
// acquires: it opens folders, files and listeners. Run serves, and returns
// when nothing of the host runs any longer. The list of parts in New is the
// architecture, in the order of starting.
//
// # The tour
//
// Follow one call through the house. A client sends
//
//	{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"file_read","arguments":{"path":"a.txt"}}}
//
// A door takes the bytes in: transport/stdio, transport/http or
// transport/socket. It bounds their number, knows who is at the other end as
// far as that can be known from outside, and cuts the stream into messages.
// It knows no tools and no revisions.
//
// protocol reads the message. It checks the JSON, finds out which revision
// of the Model Context Protocol this one message speaks, and with that
// whether it belongs to a session or stands alone. What the caller is and can
// do are the facts: session keeps them for the older revisions, for the
// newest they are in the message itself.
//
// contexts gives the caller's view: the tools, resources and prompts this
// caller sees, each with a gate from permit that has the rules compiled in.
// Listing and calling ask the same gate.
//
// calls is the one path of every call. It finds file_read in the view,
// brings the arguments into canonical form by the tool's schema (strictly,
// with defaults filled in), asks the gate, takes a slot, sets the deadline,
// and sends a request of plain data over the bus.
//
// modules takes it off the bus. It turns the data into a tool.Call, opens
// what the call may use on this machine (the folders of roots, a writer into
// the spool, the way to ask the person) and runs the handler: here
// modules/file, which reads a.txt through a root the kernel confines.
//
// The result goes back the same way. calls checks it against the tool's
// output schema, cuts what is over its budget and leaves the whole in the
// spool, and tells the bus that the call has finished. protocol writes the
// answer as the caller's revision has it, and the door sends it.
//
// Three side paths. A handler that asks the person ends its run; protocol
// carries the question, and the handler runs again from the top when the
// answer is there, its state sealed by seal meanwhile. A call that takes long
// becomes a job in jobs, which outlives the request. A module whose offer
// changes says so; contexts builds the view anew when it is next asked for,
// and protocol tells the clients.
//
// # Stopping
//
// The doors refuse new work, then sessions end, then the engine cancels what
// is in flight, then jobs stop, then the modules they ran in close, then
// spool and folders. Each has its turn, a context of its own, and bounded
// patience. After the first signal a second one ends the process at once;
// that is main's doing.
package app
