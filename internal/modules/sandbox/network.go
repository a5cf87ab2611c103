package sandbox

import (
	"context"
	"slices"

	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

type networkIn struct {
	ID     string   `json:"sandbox_id"`
	Action string   `json:"action" enum:"show,set"`
	Allow  []string `json:"allow,omitempty" doc:"with set: what may be reached, such as example.com, *.example.com:443 or 203.0.113.0/24:80,443; left out, nothing"`
	Deny   []string `json:"deny,omitempty" doc:"with set: what may not, whatever is allowed"`
}

type decision struct {
	Allowed bool   `json:"allowed"`
	Way     string `json:"way"`
	Target  string `json:"target"`
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason"`
}

type networkOut struct {
	Allow     []string   `json:"allow"`
	Deny      []string   `json:"deny"`
	Decisions []decision `json:"decisions" doc:"on the newest attempts to get out, the newest last"`
	Lost      int        `json:"lost,omitempty" doc:"decisions before these"`
}

func (m *desk) networkTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_network", Title: "Network of a sandbox", Effects: inside | tool.OpenWorld, Handle: "sandbox_id",
		Description: "Shows or sets what a sandbox may reach by way of a proxy, and shows why attempts to get out were allowed or not.",
		Help: `A sandbox has no network. Where this host lets its callers open a way out, ` + "`set`" + ` replaces the rules: what is denied counts first, then what is allowed, and nothing else is. Loopback, private networks and metadata services are denied unless a rule names that very address.

Programs find the way by ` + "`HTTP_PROXY`" + `, ` + "`HTTPS_PROXY`" + ` and ` + "`ALL_PROXY`" + `; those that already run keep the environment they began with. What is under way and no longer allowed is cut off.`,
	}, m.network)
}

func (m *desk) network(ctx context.Context, c *tool.Call, in networkIn) (networkOut, error) {
	b, done, err := m.find(c, in.ID)
	if err != nil {
		return networkOut{}, err
	}
	defer done()
	if in.Action == "set" {
		if !m.cfg.Network && len(in.Allow) > 0 {
			return networkOut{}, &tool.Refusal{Code: "denied", Message: "this host gives sandboxes no network", Next: "Whoever runs it may set modules.sandbox.network."}
		}
		if err := b.SetNetwork(ctx, sandbox.Network{Allow: in.Allow, Deny: slices.Concat(m.cfg.NetworkDeny, in.Deny)}); err != nil {
			return networkOut{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error()}
		}
	}
	rules, said, lost := b.Network()
	out := networkOut{Allow: list(rules.Allow), Deny: list(rules.Deny), Decisions: []decision{}, Lost: lost}
	for _, d := range said {
		out.Decisions = append(out.Decisions, decision{d.Allowed, d.Way, d.Target, d.Rule, d.Reason})
	}
	return out, nil
}

// list is never null.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
