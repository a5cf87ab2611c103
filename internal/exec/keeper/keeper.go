// Package keeper ends what a host started when the host itself has ended, also if it was killed.
//
// A keeper is this program started again, as a process of its own that does little else than wait. It learns of the
// host's end from a socket, which the kernel closes then. Two kinds are needed, because the kernel offers two ways to
// find what came of a child.
//
// Where control groups can be made, one keeper of the whole host ends the groups of that host. Elsewhere each child has
// a keeper above it, which is the subreaper of all that comes of the child: whatever sessions, forks and environments
// that makes, its processes remain descendants of the keeper.
//
// A program of the same user can kill its keeper. Then the host, if it is alive, ends all that has
// its mark and no keeper above it, and the next host does so for a host that is gone. The mark is a
// resource limit (see mark_linux.go) that a program can lower but not remove. A program that lowers
// it, removes the other mark from its environment, and kills its keeper escapes.
//
// The package imports the standard library alone, and begins in init, so that a keeper is ready before the other
// packages of the program are.
package keeper

import "errors"

// ErrNone is returned if this system has no keepers, or could not start one.
var ErrNone = errors.New("no keeper can be started here")

// ErrKilled is returned if a keeper was killed before it said that the program runs. The program may have run, and may
// have been what killed the keeper: the caller must not start it again.
var ErrKilled = errors.New("the process that ends this program with the host was killed as the program started; " +
	"the program may have run, and was ended")

// End is how a kept program ended.
type End struct {
	Seen   bool // false if the keeper was killed before it could say so
	Code   int  // exit code; -1 if a signal ended the program
	Signal int  // that signal; 0 if there was none
	CPU    int64
}
