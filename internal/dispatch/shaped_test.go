package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// relayed is a tool of another server that returns the arguments that it got, and reports them as its progress.
func relayed(got *json.RawMessage) tool.Tool {
	return tool.Tool{
		Def: tool.Def{
			Name: "w_make", Aliases: []string{"make.it"}, Effects: tool.Destroys,
			Raw: json.RawMessage(
				`{"name":"make","inputSchema":{"type":"object","properties":{"owner":{"type":"string"},` +
					`"title":{"type":"string"},"token":{"type":"string","maxLength":20}},"required":["owner","title","token"]}}`,
			),
		},
		Run: func(_ context.Context, c *tool.Call) (tool.Result, error) {
			*got = c.Args
			if strings.Contains(string(c.Args), "fail") {
				return tool.Result{}, &tool.WireError{Code: -32000, Message: "failed with " + string(c.Args)}
			}
			c.Peer.Progress(1, 2, string(c.Args))
			text, _ := json.Marshal(string(c.Args))
			return tool.Result{Raw: json.RawMessage(`{"content":[{"type":"text","text":` + string(text) +
				`}],"structuredContent":` + string(c.Args) + `}`)}, nil
		},
	}
}

// progressNotes records what a call reports.
type progressNotes struct {
	dispatch.Notes
	said string
}

func (n *progressNotes) Progress(_, _ float64, note string) { n.said += note }

func shapedRules(t *testing.T, o permit.Options, s views.Shape) views.Rules {
	t.Helper()
	o.Default = permit.Allow
	p, err := permit.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Tool = "w_make"
	return views.Rules{Policy: p, Specs: []views.Spec{{Name: "default", CallAliases: true, Shapes: []views.Shape{s}}}}
}

const hidden = "s3cr3t-t0ken"

func fillTest(refers map[string]string) (map[string]secret.Text, error) {
	out := map[string]secret.Text{}
	for name, text := range refers {
		if strings.Contains(text, "LOST") {
			return nil, errors.New("there is no secret LOST")
		}
		out[name] = secret.New(strings.ReplaceAll(text, "${secret:GIT}", hidden))
	}
	return out, nil
}

// What a context fixes reaches the tool by each path, and no caller can set it. A secret reaches nothing but the tool.
func TestShapedCalls(t *testing.T) {
	var got json.RawMessage
	w := &workshop{tools: []tool.Tool{relayed(&got)}}
	w.tools = append(w.tools, made("w_outer", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		return w.deps.Call(ctx, c, "w_make", json.RawMessage(`{"title":"inner"}`))
	}))
	visit(t, hosttest.Options{Secrets: fillTest}, w, func(t *testing.T, h *hosttest.Host) {
		h.Views.Set(shapedRules(t, permit.Options{}, views.Shape{
			Fixed: map[string]string{"owner": "acme", "token": "T ${secret:GIT}"},
			Drop:  []string{"/owner"},
		}))
		for _, name := range []string{"w_make", "make.it"} {
			notes := &progressNotes{}
			r := request(t, h, name, `{"title":"t"}`)
			r.Notes = notes
			res, err := h.Calls.Do(t.Context(), r)
			if err != nil || string(got) != `{"title":"t","owner":"acme","token":"T `+hidden+`"}` {
				t.Fatalf("%s: the tool got %s, %v", name, got, err)
			}
			if strings.Contains(string(res.Raw), hidden) || strings.Contains(notes.said, hidden) || notes.said == "" ||
				strings.Contains(string(res.Raw), "acme") ||
				!strings.Contains(string(res.Raw), `"structuredContent":{"title":"t","token"`) {
				t.Errorf("%s: returns %s, said %s", name, res.Raw, notes.said)
			}
			if string(r.CallerArgs()) != `{"title":"t"}` || strings.Contains(string(r.Args), hidden) {
				t.Errorf("a further round would have %s, the ledger has %s", r.CallerArgs(), r.Args)
			}
			got = nil
			for _, bad := range []string{`{"title":"t","owner":"acme"}`, `{"title":"t","\u006fwner":"x"}`,
				`{"title":"t","token":null}`} {
				res, err := h.Calls.Do(t.Context(), request(t, h, name, bad))
				if said := first(t, res, err); !strings.Contains(said, "leave it out") || got != nil {
					t.Errorf("%s with %s: %s, the tool got %s", name, bad, said, got)
				}
			}
			_, err = h.Calls.Do(t.Context(), request(t, h, name, `{"title":"fail"}`))
			if err == nil || strings.Contains(err.Error(), hidden) || !strings.Contains(err.Error(), "acme") {
				t.Errorf("%s fails with %v", name, err)
			}
		}
		res, err := h.Calls.Do(t.Context(), request(t, h, "w_outer", ``))
		if err != nil || !strings.Contains(string(got), `"title":"inner","owner":"acme","token":"T `+hidden) ||
			strings.Contains(string(res.Raw), hidden) || strings.Contains(string(res.Raw), "acme") {
			t.Errorf("a call inside a call: the tool got %s; %s, %v", got, res.Raw, err)
		}
		for _, token := range []string{"${secret:LOST}", "${secret:GIT} and more than 20"} {
			got = nil
			h.Views.Set(shapedRules(t, permit.Options{},
				views.Shape{Fixed: map[string]string{"owner": "a", "token": token}}))
			res, err := h.Calls.Do(t.Context(), request(t, h, "w_make", `{"title":"t"}`))
			if said := first(t, res, err); !strings.Contains(said, "nothing was run") || got != nil ||
				strings.Contains(said, hidden) {
				t.Errorf("%s: %s, the tool got %s", token, said, got)
			}
		}
	})
}

// Rules and approvals are about what the tool gets, and an approved call continues with what the caller sent.
func TestApprovalOfAShapedCall(t *testing.T) {
	var got json.RawMessage
	w := &workshop{tools: []tool.Tool{relayed(&got)}}
	visit(t, hosttest.Options{Secrets: fillTest}, w, func(t *testing.T, h *hosttest.Host) {
		h.Views.Set(shapedRules(t, permit.Options{Rules: []permit.Rule{
			{Name: "acme", When: `args.owner == "acme"`, Then: permit.AskOperator},
		}}, views.Shape{Fixed: map[string]string{"owner": "acme", "token": "${secret:GIT}"}}))
		r := request(t, h, "w_make", `{"title":"t"}`)
		_, err := h.Calls.Do(t.Context(), r)
		p, ok := errors.AsType[*dispatch.Pending](err)
		if !ok {
			t.Fatalf("not asked: %v", err)
		}
		asked, _ := json.Marshal(p.Approval)
		if !strings.Contains(string(asked), "acme") || strings.Contains(string(asked), hidden) {
			t.Errorf("the operator sees %s", asked)
		}
		ap, err := h.Approvals.Decide(p.Approval.ID, true, "ops")
		if err != nil {
			t.Fatal(err)
		}
		next := request(t, h, "w_make", string(r.CallerArgs()))
		next.ID = r.ID
		if !h.Calls.Approved(next, ap) {
			t.Fatal("the approval is not accepted")
		}
		last := request(t, h, "w_make", string(next.CallerArgs()))
		last.ID, last.Recorded = next.ID, next.Recorded
		if _, err := h.Calls.Do(t.Context(), last); err != nil || !strings.Contains(string(got), hidden) {
			t.Errorf("after the approval: %s, %v", got, err)
		}
	})
}
