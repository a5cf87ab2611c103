// Package dispatch runs calls, from the caller's view to the module that runs the tool and back.
//
// It finds the entry in the view, brings the arguments into canonical form, asks the gate, waits for a free slot,
// sends the request over the bus with a deadline, checks the result and shortens text that is over its budget.
// Clients, the command line, jobs and modules that call tools all use it. The folders below are its parts: views
// (what a caller sees), contextstore, bus, modulehost (runs the modules), jobs, spool, hub, progress, delayed and
// notify. mcp/protocol and app import dispatch; servers and modules do not. Begin with Dispatcher.Do.
package dispatch
