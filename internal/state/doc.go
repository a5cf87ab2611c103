// Package state is the live tree of a host: one JSON document of mounts below /public and /private, each with one
// writer and its own revision, that clients can read and follow.
//
// A read never waits, because it gets an immutable tree. A change of a mount becomes a patch, the difference
// between the values before and after, and increases the revision of the mount by one if there is a difference. A
// change of a durable mount is in a Log before any reader sees it; that of a live mount is in memory. A follower
// of a part of the tree receives one patch for all changes within a window and never delays a writer.
//
// The values below /public may be shown to clients; the packages above decide which part a client may see. A type
// that contains a secret cannot be mounted there. Modules and app import state; it imports files/sqlfile and
// access/secret. Begin with Tree.
package state
