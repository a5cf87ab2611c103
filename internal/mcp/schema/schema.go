// Package schema writes JSON Schema for Go types, and compiles JSON Schema to
// check values.
//
// For and ForOutput write the schema of a tool's arguments and results from
// their Go types. Compile compiles any schema, one of ours or one that another
// server sent. A Schema checks JSON text and describes each problem so that a
// model can correct its call. The package opens no network connections. It
// refuses a check that would cost too much, so schemas and values from other
// servers are safe.
//
// A Schema uses up to two engines. The walker reads the text once, without
// decoding it, and knows the keywords that tools commonly use. A schema with
// other keywords (allOf, $ref, patternProperties and similar ones) is also given
// to the full engine, github.com/google/jsonschema-go, which checks a decoded
// value. There, whole numbers that fit an int64 are exact; all other numbers and
// all bounds are float64. Patterns are RE2, Go's syntax, in both engines.
//
// Both are needed, as TestEngines and BenchmarkEngines measure on real schemas
// and TestOfficialSuite on the suite of JSON Schema:
//
//	                                   walker alone  full engine alone
//	our tools, 291 schemas: complete            291                291
//	  12,827 wrong values: found             12,827             12,827
//	  one check, a value that fits           1.5 µs              77 µs
//	npm servers, 163 schemas: complete          138                163
//	  5,300 wrong values: found               4,957              5,300
//	  one check, a value that fits           0.6 µs              52 µs
//	MCP 2025-11-25, 29 of its types: complete     0                 29
//	official suite, 1,937 checks: right       1,437              1,937
//
// The walker allocates nothing, reports up to five problems with their paths,
// and fills in defaults. It never refuses what the full engine accepts.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// Limits of a schema.
const (
	MaxSize       = 256 << 10 // bytes
	MaxDepth      = 128       // of nested arrays and objects
	MaxSubschemas = 4000
)

// Schema is a compiled schema. It is immutable and safe for concurrent use.
type Schema struct {
	raw          json.RawMessage
	root         *node
	defaultsSize int         // size of all defaults in bytes
	full         *fullEngine // nil if the walker knows every keyword
	formats      bool        // formats are enforced
}

// Compile prepares a schema to check values. The schema is an object or a
// boolean, of dialect 2020-12 (also if $schema is missing) or draft-07. An empty
// raw stands for an object without members. References must lead to a place
// inside the schema. Unknown keywords, format, and the boolean exclusiveMinimum and
// exclusiveMaximum of draft-4 are annotations and check nothing. The caller must not change raw afterwards.
func Compile(raw json.RawMessage) (*Schema, error) { return compile(raw, false) }

// CompileStrict is Compile, but enforces the formats date-time, date, time,
// email, uri, uuid, ipv4 and ipv6.
func CompileStrict(raw json.RawMessage) (*Schema, error) { return compile(raw, true) }

func compile(raw json.RawMessage, formats bool) (*Schema, error) {
	if len(raw) == 0 {
		raw = json.RawMessage(`{"type":"object","additionalProperties":false}`)
	}
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("schema of %d bytes: at most %d are allowed", len(raw), MaxSize)
	}
	if err := rawjson.Check(raw, MaxDepth); err != nil {
		return nil, fmt.Errorf("schema is not JSON: %w", err)
	}
	draft, err := dialect(raw)
	if err != nil {
		return nil, err
	}
	p := parser{draft07: draft == draft07}
	s := &Schema{raw: raw, root: p.node(raw, ""), formats: formats}
	if p.err != nil {
		return nil, p.err
	}
	s.defaultsSize = p.defaultsSize
	if p.needsFull {
		if s.full, err = newFullEngine(raw, draft); err != nil {
			return nil, err
		}
	}
	return s, s.compileDefaults(s.root)
}

const (
	draft2020 = "https://json-schema.org/draft/2020-12/schema"
	draft07   = "http://json-schema.org/draft-07/schema#"
)

// dialect returns the dialect that a schema is written in.
func dialect(raw []byte) (string, error) {
	v, ok := rawjson.Get(raw, "$schema")
	if !ok {
		return draft2020, nil
	}
	name, ok := rawjson.String(v)
	switch strings.TrimSuffix(strings.Replace(name, "http://", "https://", 1), "#") {
	case "":
		if ok {
			return draft2020, nil
		}
	case draft2020:
		return draft2020, nil
	case "https://json-schema.org/draft-07/schema":
		return draft07, nil
	}
	return "", &DialectError{clip(string(v), 100)}
}

// DialectError means that a schema is of a dialect that Compile does not know.
type DialectError struct{ Name string }

func (e *DialectError) Error() string {
	return fmt.Sprintf("$schema %s is not supported: use 2020-12 (%s) or draft-07 (%s)", e.Name, draft2020, draft07)
}

// Raw returns the text that the schema was compiled from.
func (s *Schema) Raw() json.RawMessage { return s.raw }

// Check reports whether raw fits the schema. The caller has checked raw by
// rawjson.Check. The error is a *Mismatch.
func (s *Schema) Check(raw []byte) error {
	w := walker{text: raw, cur: rawjson.At(raw), formats: s.formats}
	return s.checkDocument(&w)
}

// checkDocument runs the walker and, if the schema needs it, the full engine.
func (s *Schema) checkDocument(w *walker) error {
	w.budget = maxWork
	w.value(s.root)
	if w.problems != nil {
		return &Mismatch{w.problems}
	}
	if s.full != nil {
		if p := s.full.validateRaw(w.text); p != nil {
			return &Mismatch{[]Problem{*p}}
		}
	}
	return nil
}

// Canonical checks arguments and fills in the defaults of missing members, at
// the top and in the objects that are present. It changes nothing else, so
// numbers keep their spelling. If there is nothing to fill in, the result is
// args itself. Empty args count as {}. The caller has checked args by
// rawjson.Check. The error is a *Mismatch.
//
// A default is not filled in if it does not fit its own schema, or is inside a
// reference or a combination of schemas.
func (s *Schema) Canonical(args []byte) (json.RawMessage, error) {
	if len(args) == 0 {
		args = []byte("{}")
	}
	w := walker{text: args, cur: rawjson.At(args), formats: s.formats, fill: true, defaultsSize: s.defaultsSize}
	if err := s.checkDocument(&w); err != nil {
		return nil, err
	}
	return w.filled(), nil
}

// compileDefaults prepares the defaults that fit their own schema, with the
// defaults inside them filled in.
func (s *Schema) compileDefaults(n *node) error {
	if n == nil {
		return nil
	}
	for i := range n.props {
		p := &n.props[i]
		if err := s.compileDefaults(p.node); err != nil {
			return err
		}
		if p.node == nil || p.node.def == nil || p.required {
			continue
		}
		v, err := s.canonicalDefault(p.node)
		if err != nil {
			p.badDefault = err
			continue
		}
		p.fill = append(append(rawjson.AppendString(nil, p.name), ':'), v...)
		n.defaults++
	}
	return errors.Join(s.compileDefaults(n.items), s.compileDefaults(n.extra))
}

func (s *Schema) canonicalDefault(n *node) (json.RawMessage, error) {
	w := walker{text: n.def, cur: rawjson.At(n.def), formats: s.formats, fill: true, budget: maxWork}
	if w.value(n); w.problems != nil {
		return nil, &Mismatch{w.problems}
	}
	return rawjson.Compact(nil, w.filled()), nil
}
