package packages

import (
	"context"
	"fmt"
	"strings"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

type applyIn struct {
	Packages []declaredIn `json:"packages" doc:"all packages that the settings declare" max:"1000" names:"code"`
	DryRun   bool         `json:"dry_run,omitempty" doc:"only return the differences"`
	Confirm  string       `json:"confirm,omitempty" doc:"apply, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

// declaredIn is packages.Declared with the names of its settings.
type declaredIn struct {
	Name        string            `json:"name" min:"1" max:"32"`
	Source      string            `json:"source,omitempty" max:"4096"`
	Command     string            `json:"command,omitempty" max:"4096"`
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	PassHeaders []string          `json:"pass_headers,omitempty"`
	Login       string            `json:"login,omitempty" enum:"shared,principal"`
	OAuth       packages.OAuth    `json:"oauth,omitzero"`
	Start       string            `json:"start,omitempty" enum:"demand,always"`
	Results     string            `json:"results,omitempty" enum:"text"`
	Instances   string            `json:"instances,omitempty" enum:"auto,shared,principal,session"`
	Timeout     string            `json:"timeout,omitempty" max:"20"`
	TrustHints  bool              `json:"trust_hints,omitempty"`
	NewTools    string            `json:"new_tools,omitempty" enum:"ask,allow"`
	Title       string            `json:"title,omitempty" max:"200"`
	Off         []string          `json:"off,omitempty" max:"500"`
	Nodes       string            `json:"nodes,omitempty" enum:"one,each"`
	Labels      []string          `json:"labels,omitempty" max:"20"`
	Trust       bool              `json:"trust,omitempty"`
	Grants      packages.Grants   `json:"grants,omitzero"`
}

// appliedOut is the result of a comparison, or of the job that applies it.
type appliedOut struct {
	Steps []packages.Step `json:"steps" doc:"what is done to each package, with the difference"`
	Job   string          `json:"job,omitempty" doc:"follow it with job_wait"`
}

// applyPackages makes the packages those that are declared. Without a difference, and with
// dry_run, it changes nothing.
func (k *manager) applyPackages(_ context.Context, c *tool.Call, in applyIn) (appliedOut, error) {
	if err := k.checkOperator(c); err != nil {
		return appliedOut{}, err
	}
	var declared []packages.Declared
	for _, d := range in.Packages {
		declared = append(declared, packages.Declared(d))
	}
	steps, err := k.cfg.Packages.Steps(declared)
	if err != nil || in.DryRun || len(steps) == 0 {
		return appliedOut{Steps: append([]packages.Step{}, steps...)}, err
	}
	var said []string
	for _, s := range steps {
		said = append(said, s.Action+" "+s.ID)
	}
	question := fmt.Sprintf("Change packages as the settings say? %s.",
		displaytext.Cut(strings.Join(said, ", "), 600, "..."))
	if err := confirm.Ask(c, "apply", question, in.Confirm); err != nil {
		return appliedOut{}, err
	}
	started, err := k.startJob(c, "change of packages by the settings", "",
		func(ctx context.Context, c *tool.Call, say packages.Report) (any, error) {
			done, err := k.cfg.Packages.Apply(ctx, declared, say)
			for _, s := range done {
				if s.Error == "" {
					k.publish("applied", s.ID, c)
				}
			}
			return appliedOut{Steps: append([]packages.Step{}, done...)}, err
		})
	return appliedOut{Steps: steps, Job: started.Job}, err
}
