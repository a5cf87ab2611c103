package module

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"gatehouse/tool"
)

// NodeResult is the result of a call on another node of the cluster, or the reason why it has none.
type NodeResult struct {
	Node   string
	Result tool.Result
	Err    error
}

// OnNode is embedded in an entry of a list that Gather collects.
type OnNode struct {
	Node string `json:"node,omitempty" doc:"of the cluster, on which it is"`
}

// Unreached is embedded in the output of a tool that uses Gather.
type Unreached struct {
	Unreached []string `json:"unreached,omitempty" doc:"nodes of the cluster that did not answer; what they have is missing"`
}

// Gather runs the running call c on all other nodes of the cluster as well, and calls add with the structured result
// of each, in the order of their names. It returns the nodes that have no result; nil without a cluster. So a tool that
// lists what is on its node lists what is on all of them.
func Gather[T any](ctx context.Context, d Deps, c *tool.Call, add func(node string, out T)) (unreached []string) {
	if d.Elsewhere == nil {
		return nil
	}
	for _, r := range d.Elsewhere(ctx, c) {
		var out T
		if r.Err == nil {
			r.Err = decodeStructured(r.Result, &out)
		}
		if r.Err != nil {
			if d.Log != nil {
				d.Log.DebugContext(ctx, "a node did not answer", "node", r.Node, "err", r.Err)
			}
			unreached = append(unreached, r.Node)
			continue
		}
		add(r.Node, out)
	}
	return unreached
}

// ReadCursor returns the cursors of the nodes that have more to list, by node; none means that the list begins. node is
// Deps.Node: without a cluster the cursor is that of "".
func ReadCursor(cursor, node string) (all map[string]string, err error) {
	switch {
	case cursor == "":
		return nil, nil
	case node == "":
		return map[string]string{"": cursor}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("it is %.80q; expected that of the previous page", cursor)
	}
	return all, nil
}

// WriteCursor returns the cursor of a page after which these nodes have more to list, each from its own cursor; "" if
// there are none.
func WriteCursor(all map[string]string, node string) string {
	if len(all) == 0 || node == "" {
		return all[""]
	}
	raw, _ := json.Marshal(all) // strings
	return base64.RawURLEncoding.EncodeToString(raw)
}

func decodeStructured(r tool.Result, into any) error {
	if r.IsError && len(r.Content) > 0 {
		return tool.Refuse(tool.CodeFailed, "%s", r.Content[0].Text)
	}
	if r.Structured == nil && r.Raw != nil { // a tool that takes the place of another server's makes its result itself
		var result struct {
			Structured json.RawMessage `json:"structuredContent"`
		}
		if err := json.Unmarshal(r.Raw, &result); err != nil {
			return err
		}
		r.Structured = result.Structured
	}
	raw, err := json.Marshal(r.Structured)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}
