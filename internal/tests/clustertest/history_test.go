package clustertest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what clients have asked of all members, and what came of it.
type history struct {
	begin time.Time

	mu  sync.Mutex
	all []porcupine.Operation
	got map[string]int // operations by kind and end
}

func newHistory() *history { return &history{begin: time.Now(), got: map[string]int{}} }

// unknown is the output of an operation that may take effect at any later time, or never.
var unknown = outcome{Error: "may have run"}

// record runs an operation on a member and records it, unless it is known that it had no effect.
func (h *history) record(f *field, client int, m *machine, op operation) outcome {
	call := time.Since(h.begin)
	out, err := f.do(m, op)
	done := int64(time.Since(h.begin))
	if err != nil {
		out = unknown
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got[op.Kind+" "+out.Error]++
	switch out.Error {
	case "may have run":
		if passive[op.Kind] {
			return out
		}
		done = math.MaxInt64
	case "not run", "stale", "refused":
		return out
	}
	add := func(op operation) {
		h.all = append(h.all, porcupine.Operation{
			ClientId: client, Input: op, Call: int64(call), Output: out, Return: done, Metadata: m.name,
		})
	}
	switch op.Kind {
	case "token create", "token revoke":
		// Until it returns, nodes that have the change and nodes that have not serve side by side.
		begin := op
		begin.Kind += " begins"
		add(begin)
	}
	add(op)
	return out
}

// passive operations change nothing, so that nothing is lost if their end is not known.
var passive = map[string]bool{
	"mount read": true, "record read": true, "token use": true, "lease held": true, "fresh": true,
}

// state of a key in the models.
type modelState struct {
	value string // of a list or a record; of a token or an approval what it is
	token uint64
}

// model is how the stores behave if each operation takes effect at one moment.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		at := map[string]int{}
		for _, o := range all {
			op := o.Input.(operation)
			kind, _, _ := strings.Cut(op.Kind, " ")
			key := kind + " " + op.Key
			if strings.HasPrefix(op.Kind, "lease write") {
				key += " written"
			}
			i, ok := at[key]
			if !ok {
				i = len(parts)
				at[key] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], o)
		}
		return parts
	},
	Init: func() any { return modelState{} },
	Step: func(s, in, out any) (bool, any) {
		return step(s.(modelState), in.(operation), out.(outcome))
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}

// step reports whether an operation may have this outcome, and returns the state after it.
func step(s modelState, op operation, out outcome) (bool, modelState) {
	known := out.Error != "may have run"
	switch op.Kind {
	case "mount add":
		next := modelState{value: strings.TrimSpace(s.value + " " + op.Value)}
		return !known || out.Value == s.value, next
	case "record write":
		return !known || out.Value == s.value, modelState{value: op.Value}
	case "record read":
		return out.Value == s.value, s
	case "token create begins", "token create", "token revoke begins", "token revoke", "token use":
		return stepToken(s, op, out)
	case "approval ask", "approval allow", "approval deny", "approval spend":
		return stepApproval(s, op, out)
	case "lease acquire":
		if !known {
			return true, s // it held the lease, if at all, until that ended by itself
		}
		return out.Token > s.token, modelState{token: out.Token, value: "held"}
	case "lease held":
		return !out.OK || s.token == op.Token && s.value == "held", s
	case "lease release":
		if s.token == op.Token {
			s.value = "free"
		}
		return true, s
	case "lease write":
		if out.Error == "fenced" {
			return s.token > op.Token, s
		}
		if !known && op.Token < s.token { // it was refused, or never ran
			return true, s
		}
		return op.Token >= s.token, modelState{token: op.Token, value: op.Value}
	}
	return false, s
}

func stepToken(s modelState, op operation, out outcome) (bool, modelState) {
	switch op.Kind {
	case "token create begins":
		return s.value == "", modelState{value: "begins"}
	case "token create":
		return s.value == "begins", modelState{value: "valid"}
	case "token revoke begins":
		if out.Error == "none" {
			return true, s
		}
		return true, modelState{value: "ends"}
	case "token revoke":
		if out.Error == "none" {
			return s.value == "" || s.value == "ends" || s.value == "revoked", s
		}
		return s.value == "ends" || s.value == "revoked", modelState{value: "revoked"}
	}
	if out.OK {
		return s.value == "begins" || s.value == "valid" || s.value == "ends", s
	}
	return s.value != "valid", s
}

func stepApproval(s modelState, op operation, out outcome) (bool, modelState) {
	known := out.Error != "may have run"
	switch op.Kind {
	case "approval ask":
		return s.value == "", modelState{value: "pending"}
	case "approval allow", "approval deny":
		if out.Error == "none" {
			return s.value != "pending", s
		}
		if known && s.value != "pending" {
			return false, s
		}
		if s.value == "pending" {
			s.value = strings.TrimPrefix(op.Kind, "approval ")
		}
		return true, s
	}
	if known && out.OK != (s.value == "allow") {
		return false, s
	}
	if s.value == "allow" {
		s.value = "used"
	}
	return true, s
}

// check fails the test if the history is not that of a correct cluster.
func (h *history) check(t *testing.T, what string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, part := range model.Partition(h.all) {
		switch porcupine.CheckOperationsTimeout(model, part, time.Minute) {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			t.Errorf("%s: a history of %d operations could not be checked within a minute", what, len(part))
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		var lines strings.Builder
		for _, o := range part {
			op, out := o.Input.(operation), o.Output.(outcome)
			end := "never"
			if o.Return != math.MaxInt64 {
				end = time.Duration(o.Return).Round(time.Microsecond).String()
			}
			fmt.Fprintf(&lines, "%v to %s, %v: %s %s %q token %d: %v %q token %d %s\n",
				time.Duration(o.Call).Round(time.Microsecond), end, o.Metadata, op.Kind, op.Key, op.Value, op.Token,
				out.OK, out.Value, out.Token, out.Error)
		}
		t.Errorf("%s: no order of these operations explains what came of them:\n%s", what, lines.String())
	}
}

// TestTheModel checks histories that are wrong, which the model must find.
func TestTheModel(t *testing.T) {
	op := func(call, end int64, in operation, out outcome) porcupine.Operation {
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: end}
	}
	ok := outcome{OK: true}
	token := func(call, end int64, kind string, out outcome) []porcupine.Operation {
		first := op(call, end, operation{Kind: "token " + kind, Key: "k"}, out)
		if kind == "use" {
			return []porcupine.Operation{first}
		}
		return []porcupine.Operation{op(call, end, operation{Kind: "token " + kind + " begins", Key: "k"}, out), first}
	}
	lists := func(all ...[]porcupine.Operation) []porcupine.Operation { return slices.Concat(all...) }
	for name, c := range map[string]struct {
		right bool
		all   []porcupine.Operation
	}{
		"a write that was lost": {false, []porcupine.Operation{
			op(1, 2, operation{Kind: "mount add", Value: "x"}, ok),
			op(3, 4, operation{Kind: "mount add", Value: "y"}, ok),
		}},
		"a write that may have run, and has": {true, []porcupine.Operation{
			op(1, math.MaxInt64, operation{Kind: "mount add", Value: "x"}, unknown),
			op(3, 4, operation{Kind: "mount add", Value: "y"}, outcome{OK: true, Value: "x"}),
		}},
		"a write that may have run, and has not": {true, []porcupine.Operation{
			op(1, math.MaxInt64, operation{Kind: "mount add", Value: "x"}, unknown),
			op(3, 4, operation{Kind: "mount add", Value: "y"}, ok),
		}},
		"a revoked token": {false, lists(token(1, 2, "create", ok), token(3, 4, "revoke", ok), token(5, 6, "use", ok))},
		"a token while it is revoked": {true, lists(token(1, 2, "create", ok), token(3, 9, "revoke", ok),
			token(4, 5, "use", outcome{}), token(6, 7, "use", ok))},
		"a token that is not known": {false, lists(token(1, 2, "create", ok), token(3, 4, "use", outcome{}))},
		"an approval used twice": {false, []porcupine.Operation{
			op(1, 2, operation{Kind: "approval ask"}, ok), op(3, 4, operation{Kind: "approval allow"}, ok),
			op(5, 9, operation{Kind: "approval spend"}, ok), op(5, 9, operation{Kind: "approval spend"}, ok),
		}},
		"an approval decided twice": {false, []porcupine.Operation{
			op(1, 2, operation{Kind: "approval ask"}, ok), op(3, 4, operation{Kind: "approval allow"}, ok),
			op(3, 4, operation{Kind: "approval deny"}, ok),
		}},
		"a lease with two holders": {false, []porcupine.Operation{
			op(1, 2, operation{Kind: "lease acquire"}, outcome{OK: true, Token: 1}),
			op(3, 4, operation{Kind: "lease acquire"}, outcome{OK: true, Token: 2}),
			op(5, 6, operation{Kind: "lease held", Token: 1}, ok),
		}},
		"a write of an earlier holder": {false, []porcupine.Operation{
			op(1, 2, operation{Kind: "lease write", Token: 2}, ok), op(3, 4, operation{Kind: "lease write", Token: 1}, ok),
		}},
		"a write of an earlier holder that may have run": {true, []porcupine.Operation{
			op(1, 2, operation{Kind: "lease write", Token: 2}, ok),
			op(3, math.MaxInt64, operation{Kind: "lease write", Token: 1}, unknown),
		}},
	} {
		if got := porcupine.CheckOperations(model, c.all); got != c.right {
			t.Errorf("%s: %v", name, got)
		}
	}
}
