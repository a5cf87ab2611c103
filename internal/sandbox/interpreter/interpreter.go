// Package interpreter runs code in a sandbox by way of interpreters that are there
// already: one that forks for each piece of code, and ones that remember what
// earlier pieces did.
//
// Code and what it brings travel as bytes beside each other, never pasted into
// a shell. The interpreters run with the rights of the code, so what they say
// is as little trusted as what the code prints.
package interpreter

import (
	"context"
	"errors"
	"io"
	"time"

	"gatehouse/internal/sandbox"
)

// Code is a piece of code to run. Only Source is needed.
type Code struct {
	Source string
	Stdin  []byte   // what it can read
	Env    []string // NAME=value
	Dir    string   // "" means where the last piece left off, or the home folder

	// Stdout and Stderr take what it prints, Show what it shows; nil means
	// thrown away. They are called by one goroutine.
	Stdout, Stderr io.Writer
	Show           func(Part)

	Timeout time.Duration // 0 means the sandbox's Limits.Call, less than 0 none
	// OutputBytes is how much each stream may bring; 0 means the sandbox's limit. Tests set it,
	// because callers have the sandbox's limit.
	OutputBytes int
}

// Part is something that code shows besides what it prints.
type Part struct {
	MIME string // text/plain, image/png, application/json ...
	Data []byte // at most 8 MiB
}

// Result is how a piece of code ended.
type Result struct {
	sandbox.Result
	Error  *Failure // what the code did not catch; nil when there was nothing
	Forgot bool     // what earlier pieces did is lost; of a Context
}

// Failure is an error of the code's.
type Failure struct{ Name, Message, Traceback string }

// ErrBusy is the answer to code while other code runs in the same place.
var ErrBusy = errors.New("it is busy with other code")

// A Context remembers what code did in it. One piece runs at a time; another
// gets ErrBusy.
type Context interface {
	Run(ctx context.Context, c Code) (Result, error)
	// Interrupt asks the code that runs to stop, as Ctrl-C does. It does
	// nothing when none runs.
	Interrupt()
	Close()
}

// Languages are what code may be written in, by every name it goes by.
func Languages() map[string]Language {
	return map[string]Language{
		"python": Python, "python3": Python, "py": Python,
		"node": Node, "javascript": Node, "js": Node,
		"bash": Bash, "sh": Shell, "shell": Shell,
	}
}

// Language is what code is written in.
type Language string

const (
	Python Language = "python"
	Node   Language = "node"
	Bash   Language = "bash"
	Shell  Language = "sh"
)

// program is what runs a file of the language, and the end of such a file's
// name.
func (l Language) program() (argv []string, suffix string) {
	switch l {
	case Python:
		return []string{"python3"}, ".py"
	case Node:
		return []string{"node"}, ".js"
	case Bash:
		return []string{"bash"}, ".sh"
	}
	return []string{"sh"}, ".sh"
}
