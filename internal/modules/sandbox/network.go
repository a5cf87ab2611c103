package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type networkIn struct {
	ID     string   `json:"sandbox_id"`
	Action string   `json:"action" enum:"show,set"`
	Allow  []string `json:"allow,omitempty" doc:"with set: what may be reached, such as example.com, *.example.com:443 or 203.0.113.0/24:80,443; default: nothing"`
	Deny   []string `json:"deny,omitempty" doc:"with set: what may not be reached, even if it is allowed"`

	Secrets []string `json:"secrets,omitempty" doc:"with set: variables of this context that contain secrets; in the sandbox they contain placeholders"`
}

type decision struct {
	Allowed bool   `json:"allowed"`
	Way     string `json:"way"`
	Target  string `json:"target"`
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason"`
}

type swapped struct {
	Name        string   `json:"name" doc:"the variable that contains the placeholder"`
	Placeholder string   `json:"placeholder"`
	Hosts       []string `json:"hosts" doc:"hosts it may be sent to"`
}

type networkOut struct {
	Allow     []string   `json:"allow"`
	Deny      []string   `json:"deny"`
	Decisions []decision `json:"decisions" doc:"about the newest attempts to connect, the newest last"`
	Lost      int        `json:"lost,omitempty" doc:"number of earlier decisions"`

	Secrets []swapped `json:"secrets,omitempty" doc:"secrets that the proxy inserts"`
}

func (m *sandboxTools) networkTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_network", Title: "Network of a sandbox", Effects: inside | tool.OpenWorld, Handle: "sandbox_id",
		Description: "Shows or sets what a sandbox may reach through a proxy, and shows why attempts to connect " +
			"were allowed or refused.",
		Help: `A sandbox has no network. If this host allows network access, ` + "`set`" +
			` replaces the rules: denied targets are refused first, then allowed ones may be reached, and all others are refused. Loopback, private networks, metadata services and the host's own addresses may be reached only if the host's settings allow them as well, and listeners of the host never. At ports 80 and 443 only HTTP and TLS are allowed, unless the rule ends in ` + "`/tcp`" + `, as in ` + "`example.com:443/tcp`" + `.

Programs find the proxy in ` + "`HTTP_PROXY`" + `, ` + "`HTTPS_PROXY`" + ` and ` + "`ALL_PROXY`" + `; those that already run keep their environment. Open connections that are no longer allowed are closed.

A secret never enters the sandbox. ` + "`secrets`" + ` names variables of this context that refer to secrets of the host. The variable contains a placeholder, which code sends in a field or the query of a request; the proxy replaces it by the secret, only over TLS and only for the hosts that the host's settings name. For this, send the request to the proxy as ` + "`http://`" + ` : inside a tunnel to ` + "`https://`" + ` nothing is replaced.`,
	}, m.network)
}

func (m *sandboxTools) network(ctx context.Context, c *tool.Call, in networkIn) (networkOut, error) {
	b, done, err := m.findBox(c, in.ID)
	if err != nil {
		return networkOut{}, err
	}
	defer done()
	if in.Action == "set" {
		if !m.cfg.Settings.Network && len(in.Allow) > 0 {
			return networkOut{}, &tool.Refusal{
				Code:    tool.CodeDenied,
				Message: "this host does not allow network access for sandboxes",
				Next:    "The administrator can set modules.sandbox.network.",
			}
		}
		secrets, err := m.secrets(c.Caller, in.Secrets)
		if err != nil {
			return networkOut{}, err
		}
		err = b.SetNetwork(ctx, sandbox.Network{
			Allow: in.Allow, Special: m.cfg.Settings.NetworkSpecial,
			Deny: slices.Concat(m.cfg.Settings.NetworkDeny, in.Deny),
		}, secrets)
		if errors.Is(err, manager.ErrUnsupported) || errors.Is(err, sandbox.ErrClosed) ||
			errors.Is(err, sandbox.ErrPaused) {
			return networkOut{}, able(err)
		}
		if err != nil {
			return networkOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
		}
	}
	rules, said, lost := b.Network()
	out := networkOut{Allow: joinNames(rules.Allow), Deny: joinNames(rules.Deny), Decisions: []decision{}, Lost: lost}
	for _, d := range said {
		out.Decisions = append(out.Decisions, decision{d.Allowed, d.Method, d.Target, d.Rule, d.Reason})
	}
	for name, mark := range b.Placeholders() {
		for _, s := range rules.Secrets {
			if s.Placeholder == mark {
				out.Secrets = append(out.Secrets, swapped{name, mark, s.Hosts})
			}
		}
	}
	slices.SortFunc(out.Secrets, func(a, b swapped) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// secrets returns the named secrets of the caller's context.
func (m *sandboxTools) secrets(who tool.Caller, names []string) (map[string]manager.Secret, error) {
	if len(names) == 0 {
		return nil, nil
	}
	all := map[string]manager.Secret{}
	if m.cfg.Secrets != nil {
		var err error
		if all, err = m.cfg.Secrets(who); err != nil {
			return nil, &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: err.Error(),
				Next:    "The administrator sets secrets with gatehouse secret set.",
			}
		}
	}
	asked := map[string]manager.Secret{}
	for _, name := range names {
		s, there := all[name]
		if !there {
			return nil, &tool.Refusal{
				Code:    tool.CodeDenied,
				Message: fmt.Sprintf("sandboxes of this context may not use the secret %q", name),
				Next: "Allowed are variables of the context that refer to one secret for which " +
					"modules.sandbox.secrets names hosts.",
			}
		}
		asked[name] = s
	}
	return asked, nil
}

// joinNames returns an empty list instead of nil, because JSON clients expect a list.
func joinNames(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
