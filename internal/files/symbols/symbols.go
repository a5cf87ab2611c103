// Package symbols finds the definitions in a source text: what it declares, on
// which lines, one inside the other.
package symbols

import (
	"bytes"
	"strings"
)

// modifiers may stand before the word that tells a definition.
var modifiers = wordSet(`abstract async const default declare export extern final inline internal local open override
	private protected public pub readonly sealed static suspend unsafe virtual partial operator companion data`)

// keywords begin a definition in some language.
var keywords = wordSet(
	`class def defmodule defn defp defun enum fn fun func function impl interface macro macro_rules! module
	namespace object package proc protocol record struct sub trait type typedef union`,
)

func wordSet(s string) map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(s) {
		m[w] = true
	}
	return m
}

// Defines reports whether a line looks like the definition of what begins at a
// position in it: before that there is nothing but modifiers, the word for a
// definition and perhaps a receiver.
func Defines(line []byte, at int) bool {
	head := bytes.TrimSpace(line[:min(at, len(line))])
	if rest, ok := bytes.CutPrefix(head, []byte("#define")); ok && len(line) > 7 {
		return len(rest) == 0
	}
	begins := len(head) == 0 // the match begins with the keyword
	if begins {
		head = bytes.TrimSpace(line)
	}
	for range 8 {
		word, rest, _ := bytes.Cut(head, []byte(" "))
		if i := bytes.IndexAny(word, "(<"); i > 0 { // pub(crate), impl<T>
			word = word[:i]
		}
		switch {
		case keywords[string(word)]:
			return begins || isName(afterReceiver(bytes.TrimSpace(rest)))
		case !modifiers[string(word)]:
			return false
		}
		head = bytes.TrimSpace(rest)
	}
	return false
}

// afterReceiver is what follows the receiver of a method in Go.
func afterReceiver(b []byte) []byte {
	if bytes.HasPrefix(b, []byte("(")) {
		_, b, _ = bytes.Cut(b, []byte(")"))
	}
	return bytes.TrimSpace(b)
}

// isName reports whether a text is the beginning of one name.
func isName(b []byte) bool {
	return !bytes.ContainsAny(b, " \t(){}=,;")
}
