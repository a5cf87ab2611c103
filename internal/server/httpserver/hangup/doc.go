// Package hangup notices when the peers of connections close them, without a read for each: an open
// stream of events then costs no goroutine. Only Linux can; elsewhere a Watcher watches nothing,
// and a write finds what was closed.
package hangup
