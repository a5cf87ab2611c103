package permit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"cel.dev/cel-go/cel"

	"gatehouse/tool"
)

// expression is a condition over the arguments of a call, in the Common Expression Language: args holds
// the canonical arguments, caller has roles and scopes, op has context, method, module, name and
// effects, and paths and commands, which the host resolves only for expressions that read them.
type expression struct {
	program cel.Program
	needs   needs
}

// costLimit limits the cost of one evaluation; it is far above what a condition needs.
const costLimit = 100_000

func environment() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("caller", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("op", cel.MapType(cel.StringType, cel.DynType)),
	)
}

// parseExpression parses and type-checks an expression without making it a program.
func parseExpression(text string) (*cel.Ast, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	return ast, issues.Err()
}

func compileExpression(text string) (*expression, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("returns a %s, expected true or false", t)
	}
	p, err := env.Program(ast, cel.CostLimit(costLimit))
	if err != nil {
		return nil, err
	}
	return &expression{p, needsOf(ast)}, nil
}

// holds evaluates the condition.
func (e *expression) holds(in map[string]any) (bool, error) {
	out, _, err := e.program.Eval(in)
	if err != nil {
		return false, err
	}
	yes, ok := out.Value().(bool)
	if !ok {
		return false, errors.New("the result is neither true nor false")
	}
	return yes, nil
}

// inputs returns the variables of expressions.
func inputs(g *Gate, raw json.RawMessage, caller *tool.Caller) (map[string]any, error) {
	args := map[string]any{}
	if len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&args); err != nil {
			return nil, err
		}
	}
	exact, err := exactly(args)
	if err != nil {
		return nil, err
	}
	op := map[string]any{
		"context": g.op.Context, "method": g.op.Method, "module": g.op.Module, "name": g.op.Name,
		"effects": effectNames(effective(g.op.Effects)),
	}
	g.resolve(op, raw, caller)
	return map[string]any{
		"args":   exact,
		"caller": map[string]any{"roles": nonNil(g.who.roles), "scopes": nonNil(g.who.scopes)},
		"op":     op,
	}, nil
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// exactly converts JSON numbers to values that compare exactly: to integers if they are whole, and to
// an error if no number of the language can represent one.
func exactly(v any) (any, error) {
	var err error
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			if x[k], err = exactly(e); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, e := range x {
			if x[i], err = exactly(e); err != nil {
				return nil, err
			}
		}
	case json.Number:
		return parseNumber(string(x))
	}
	return v, nil
}

func parseNumber(s string) (any, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, err
	}
	if f == math.Trunc(f) {
		if math.Abs(f) < 1<<53 {
			return int64(f), nil
		}
		return nil, fmt.Errorf("number %s is too large to be compared exactly", s)
	}
	return f, nil
}

var effectWords = []struct {
	e    tool.Effects
	name string
}{
	{tool.Reads, "reads"}, {tool.Writes, "writes"}, {tool.Destroys, "destroys"},
	{tool.OpenWorld, "open-world"}, {tool.Idempotent, "idempotent"},
}

func effectNames(e tool.Effects) []string {
	out := []string{}
	for _, w := range effectWords {
		if e&w.e != 0 {
			out = append(out, w.name)
		}
	}
	return out
}

// ParseEffects parses names of effects: reads, writes, destroys, open-world, idempotent.
func ParseEffects(names []string) (e tool.Effects, err error) {
next:
	for _, n := range names {
		for _, w := range effectWords {
			if w.name == n {
				e |= w.e
				continue next
			}
		}
		return 0, fmt.Errorf("effect %q: expected reads, writes, destroys or open-world", n)
	}
	return e, nil
}
