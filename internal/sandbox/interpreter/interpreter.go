// Package interpreter runs code in a sandbox with interpreters that are running already: one that forks for
// each piece of code, and ones that keep the state of earlier pieces.
//
// Code and its input are sent as bytes and never inserted into a shell command. The interpreters run with the
// permissions of the code, so their messages are trusted as little as the code's output.
package interpreter

import (
	"context"
	"errors"
	"io"
	"time"

	"gatehouse/internal/sandbox"
)

// Code is a piece of code to run. Only Source is required.
type Code struct {
	Source string
	Stdin  []byte   // standard input
	Env    []string // NAME=value
	Dir    string   // "" means the folder of the last piece, or the home folder

	// Stdout and Stderr receive the output, Show the parts that the code shows; nil discards them. They are
	// called by one goroutine.
	Stdout, Stderr io.Writer
	Show           func(Part)

	Timeout time.Duration // 0 means the sandbox's Limits.Call, less than 0 none
	// OutputBytes is the most bytes of each stream; 0 means the sandbox's limit. Only tests set it.
	OutputBytes int
}

// Part is a result that code shows in addition to its output.
type Part struct {
	MIME string // text/plain, image/png, application/json ...
	Data []byte // at most 8 MiB
}

// Result is how a piece of code ended.
type Result struct {
	sandbox.Result
	Error     *Failure // an uncaught error of the code, or nil
	StateLost bool     // the state of earlier pieces is lost; of a Context
}

// Failure is an uncaught error of the code.
type Failure struct{ Name, Message, Traceback string }

// ErrBusy is returned while other code runs in the same interpreter.
var ErrBusy = errors.New("the interpreter is busy with other code")

// A Context keeps the state of the code that ran in it. It runs one piece at a time; concurrent calls of Run
// return ErrBusy.
type Context interface {
	Run(ctx context.Context, c Code) (Result, error)
	// Interrupt interrupts the running code, as Ctrl-C does. It does nothing if none runs.
	Interrupt()
	Close()
}

// Languages returns the languages by all their names.
func Languages() map[string]Language {
	return map[string]Language{
		"python": Python, "python3": Python, "py": Python,
		"node": Node, "javascript": Node, "js": Node,
		"bash": Bash, "sh": Shell, "shell": Shell,
	}
}

// Language is a programming language.
type Language string

const (
	Python Language = "python"
	Node   Language = "node"
	Bash   Language = "bash"
	Shell  Language = "sh"
)

// program returns the command that runs a file of the language, and the suffix of such a file.
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
