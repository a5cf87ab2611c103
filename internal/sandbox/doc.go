// Package sandbox defines what a sandbox for untrusted code offers: its interfaces, its limits, and how the
// end of a call in it is judged.
//
// A Driver makes Sandboxes of one kind; each driver is a folder below and passes the suite in sandboxtest.
// Abilities that only some drivers have are found by type assertion on the Sandbox: Files, Archive, Pausable,
// Snapshotter, Dialer, Networked, UsageReporter and Adjustable. Modules and app import sandbox; it imports no
// module. Begin with Driver, then namespaces, the driver that requires nothing to be installed.
package sandbox
