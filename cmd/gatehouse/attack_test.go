package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// attack runs one story of testdata/attack. The stories are attacks on a whole
// host that runs as a process of its own.
func attack(t *testing.T, name string) {
	testscript.Run(t, params(t, "", "testdata/attack/"+name+".txt"))
}

//redteam:attack Children never answer: a wrong passphrase, none, one from a pipe, and a yes by a shell of the client itself
//redteam:attack Children never answer: a shell of the client itself removes the passphrase, or sets its own, while the host runs
func TestOnlyThePassphraseApproves(t *testing.T) { attack(t, "passphrase") }

//redteam:attack Children never answer: the approval command by a shell, by a terminal, after a double fork, detached, and over the Unix socket
//redteam:attack Children never answer: the same where the settings open the host's files to children
func TestAChildOfTheHostApprovesNothing(t *testing.T) { attack(t, "children") }

//redteam:attack Children never answer: without a passphrase a shell of the client itself says yes, and nothing says so
func TestAYesWithoutPassphraseIsCalledSo(t *testing.T) { attack(t, "sameaccount") }
