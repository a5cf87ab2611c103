// Package permit decides who may do what: it is the one place that says yes.
package permit

import (
	"encoding/json"

	"gatehouse/tool"
)

// Kind is what a verdict says. The zero value refuses.
type Kind uint8

const (
	Refuse Kind = iota
	AskOperator
	AskClient
	Allow
)

// Verdict is a decision and where it comes from.
type Verdict struct {
	Kind   Kind
	Rule   string // the rule that decided; for the ledger
	Reason string // for the caller; names nothing the caller may not know
}

// Cut is the fingerprint of what matters about a caller: two callers with the
// same cut see the same view.
type Cut string

// Op is something that can be done, before its arguments are known.
type Op struct {
	Context, Method, Module, Name string
	Effects                       tool.Effects
}

// Policy is a set of rules. It is immutable; a change makes a new one.
type Policy struct {
	// ReadOnly refuses every tool that does not promise to change nothing.
	ReadOnly bool
}

// Cut says which view a caller sees.
func (p *Policy) Cut(c tool.Caller) Cut { return Cut(c.Context) }

// Gate compiles the rules that concern one operation. It is called once, when
// a view is built.
func (p *Policy) Gate(_ Cut, op Op) *Gate {
	if p.ReadOnly && op.Method == "tools/call" && !op.Effects.ReadOnly() {
		return &Gate{fixed: Verdict{Refuse, "read-only", "this host only reads"}}
	}
	return &Gate{fixed: Verdict{Kind: Allow, Rule: "default"}}
}

// Gate is the compiled decision for one entry of a view. Listing and calling
// ask the same gate.
type Gate struct{ fixed Verdict }

// Listed reports whether there are arguments that would not be refused.
func (g *Gate) Listed() bool { return g != nil && g.fixed.Kind != Refuse }

// Decide judges one call by its canonical arguments.
func (g *Gate) Decide(args json.RawMessage) Verdict {
	if g == nil {
		return Verdict{}
	}
	return g.fixed
}
