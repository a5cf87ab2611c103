// Package pins remembers what an administrator has approved of a package: hashes of its tools and
// prompts as its server lists them, its version and the digest of its program. It compares what a
// server lists with them, says what differs, and reads and writes the lock file, which can be
// committed.
//
// It only computes: package packages stores pins with the records of packages and enforces them.
package pins

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages/attest"
)

// Kinds of entries that are pinned. Resources are not: they are data, and the lists of many servers
// change while they are used.
const (
	Tool   = "tool"
	Prompt = "prompt"
)

// Hash returns the hash of an entry of a server's list. It covers every member, such as name, title,
// description, schemas, annotations and _meta, because clients and models read them. The order of
// members and white space do not count; a member that is there twice counts twice.
func Hash(entry json.RawMessage) string {
	sum := sha256.Sum256(canonical(nil, entry))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// canonical appends a value with the members of each object sorted. Strings are written in one way,
// numbers as they are.
func canonical(dst []byte, v []byte) []byte {
	switch rawjson.Kind(v) {
	case '{':
		type member struct{ key, value []byte }
		var all []member
		for k, value := range rawjson.Object(v) {
			all = append(all, member{k, value})
		}
		slices.SortStableFunc(all, func(a, b member) int { return bytes.Compare(a.key, b.key) })
		dst = append(dst, '{')
		for i, m := range all {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = rawjson.AppendString(dst, string(m.key))
			dst = canonical(append(dst, ':'), m.value)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		first := true
		for e := range rawjson.Elements(v) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = canonical(dst, e)
		}
		return append(dst, ']')
	case '"':
		if s, ok := rawjson.String(v); ok {
			return rawjson.AppendString(dst, s)
		}
	}
	return append(dst, bytes.TrimSpace(v)...)
}

// Pin is the approval of one tool or prompt.
type Pin struct {
	Hash string    `json:"hash"`
	By   string    `json:"by,omitempty"`
	At   time.Time `json:"at,omitzero"`
}

// Pins are what is approved of a package. The maps are by the server's own names.
type Pins struct {
	Version string         `json:"version,omitempty"`
	Digest  string         `json:"digest,omitempty"` // of the program; "" if nothing is installed
	Tools   map[string]Pin `json:"tools,omitempty"`
	Prompts map[string]Pin `json:"prompts,omitempty"`
	// Refused are the definitions that a person has refused, by kind and name. Another definition
	// of the same name is a new question.
	Refused map[string]Pin `json:"refused,omitempty"`
	// Attested says where the program was built; nil if no attestation said so.
	Attested *attest.Identity `json:"attested,omitempty"`
}

// Clone returns a copy that shares nothing. That of nil is nil.
func (p *Pins) Clone() *Pins {
	if p == nil {
		return nil
	}
	c := *p
	c.Tools, c.Prompts, c.Refused = maps.Clone(p.Tools), maps.Clone(p.Prompts), maps.Clone(p.Refused)
	return &c
}

func (p *Pins) of(kind string) map[string]Pin {
	if kind == Prompt {
		return p.Prompts
	}
	return p.Tools
}

// Find returns the approval of a tool or prompt.
func (p *Pins) Find(kind, name string) (Pin, bool) {
	if p == nil {
		return Pin{}, false
	}
	pin, ok := p.of(kind)[name]
	return pin, ok
}

// Approve pins a definition in place of an earlier one.
func (p *Pins) Approve(kind, name string, pin Pin) {
	into := &p.Tools
	if kind == Prompt {
		into = &p.Prompts
	}
	if *into == nil {
		*into = map[string]Pin{}
	}
	(*into)[name] = pin
	delete(p.Refused, kind+" "+name)
}

// Refuse records that a definition is refused. What was approved under its name stays approved.
func (p *Pins) Refuse(kind, name string, pin Pin) {
	if p.Refused == nil {
		p.Refused = map[string]Pin{}
	}
	p.Refused[kind+" "+name] = pin
}

// Refusal returns who refused a definition, if it was.
func (p *Pins) Refusal(kind, name, hash string) (Pin, bool) {
	if p == nil {
		return Pin{}, false
	}
	pin, ok := p.Refused[kind+" "+name]
	return pin, ok && pin.Hash == hash
}

// States of an entry that a server lists.
const (
	Approved = "approved" // it is as it was approved
	New      = "new"      // no administrator has approved it
	Changed  = "changed"  // another definition was approved
	Refused  = "refused"  // a person has refused this definition
)

// State says whether an entry of a server's list is approved. Pins that are nil approve nothing.
func (p *Pins) State(kind, name, hash string) string {
	pin, known := p.Find(kind, name)
	if known && pin.Hash == hash {
		return Approved
	}
	if _, refused := p.Refusal(kind, name, hash); refused {
		return Refused
	}
	if known {
		return Changed
	}
	return New
}

// Entry is one tool or prompt as a server lists it.
type Entry struct {
	Kind string
	Own  string // the server's name
	Hash string
}

// Compare orders entries by kind and name.
func Compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Own, b.Own)) // tools before prompts
}

// Prune removes refusals of entries that are not listed any more, so that a server cannot make them
// grow. Approvals stay, because a server may list some tools only at times; they grow by approvals
// alone.
func (p *Pins) Prune(listed []Entry) {
	maps.DeleteFunc(p.Refused, func(key string, pin Pin) bool {
		return !slices.ContainsFunc(listed, func(e Entry) bool { return e.Kind+" "+e.Own == key && e.Hash == pin.Hash })
	})
}
