package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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

// agreedSteps is what the user has agreed to of a job that changes several packages. It is recorded with the call, so
// that another node which goes on with the job does no more, and in the name of the same settings.
type agreedSteps struct {
	By    string          `json:"by,omitempty"` // the settings that declare the packages
	Steps []packages.Step `json:"steps"`        // without the differences
}

// severalPackages is a job that makes several packages what a document says.
type severalPackages struct {
	thing, title string // of the confirmation and of the job
	question     func(steps string) string
	published    string // the event of each package
	compare      func(by string) ([]packages.Step, error)
	run          func(ctx context.Context, work packages.Part, say packages.Report) ([]packages.Step, error)
}

// change returns the differences, or starts the job that removes them, after the user has agreed.
func (k *manager) change(
	ctx context.Context, c *tool.Call, s severalPackages, dryRun bool, word string,
) (appliedOut, error) {
	job, again := tool.JobOf(c)
	if again {
		if err := k.cfg.Packages.ReclaimAll(ctx, job); err != nil {
			return appliedOut{}, err
		}
	}
	agreed, known := agreedSteps{By: k.cfg.Packages.DeclaredBy()}, false
	if raw, ok := c.Peer.Recall("steps"); ok {
		if err := json.Unmarshal(raw, &agreed); err != nil {
			return appliedOut{}, err
		}
		known = true
	}
	steps, err := s.compare(agreed.By)
	if known {
		steps = slices.DeleteFunc(steps, func(s packages.Step) bool { return !hasStep(agreed.Steps, s.ID) })
	}
	if err != nil || dryRun || len(steps) == 0 && !again {
		return appliedOut{Steps: append([]packages.Step{}, steps...)}, err
	}
	if !known {
		for i := range steps {
			agreed.Steps = append(agreed.Steps, packages.Step{ID: steps[i].ID, Action: steps[i].Action})
		}
		if c.Peer.Record("steps", agreed) != nil { // there are too many
			tool.Stay(c)
		}
	}
	var said, only []string
	for i := range steps {
		said, only = append(said, steps[i].Action+" "+steps[i].ID), append(only, steps[i].ID)
		if steps[i].NeedsPath() {
			tool.Stay(c) // no other node has the path
		}
	}
	if len(steps) > 0 {
		question := s.question(displaytext.Cut(strings.Join(said, ", "), 600, "..."))
		if err := confirm.Ask(c, s.thing, question, word); err != nil {
			return appliedOut{}, err
		}
	}
	// What is no longer to be done of them, the node has done on which the job was.
	earlier := slices.DeleteFunc(agreed.Steps, func(s packages.Step) bool { return hasStep(steps, s.ID) })
	started, err := k.startJob(c, s.title, "",
		func(ctx context.Context, c *tool.Call, say packages.Report) (any, error) {
			if len(only) == 0 {
				return appliedOut{Steps: earlier}, nil
			}
			job, _ := tool.JobOf(c)
			done, err := s.run(ctx, packages.Part{Job: job, By: agreed.By, Only: only}, say)
			for _, one := range done {
				if one.Error == "" {
					k.publish(s.published, one.ID, c)
				}
			}
			return appliedOut{Steps: slices.Concat([]packages.Step{}, earlier, done)}, err
		})
	return appliedOut{Steps: steps, Job: started.Job}, err
}

func hasStep(steps []packages.Step, id string) bool {
	return slices.ContainsFunc(steps, func(s packages.Step) bool { return s.ID == id })
}

// applyPackages makes the packages those that are declared. Without a difference, and with
// dry_run, it changes nothing.
func (k *manager) applyPackages(ctx context.Context, c *tool.Call, in applyIn) (appliedOut, error) {
	if err := k.checkOperator(c); err != nil {
		return appliedOut{}, err
	}
	var declared []packages.Declared
	for _, d := range in.Packages {
		declared = append(declared, packages.Declared(d))
	}
	return k.change(ctx, c, severalPackages{
		thing: "apply", title: "change of packages by the settings", published: "applied",
		question: func(steps string) string { return fmt.Sprintf("Change packages as the settings say? %s.", steps) },
		compare:  func(by string) ([]packages.Step, error) { return k.cfg.Packages.Steps(declared, by) },
		run: func(ctx context.Context, work packages.Part, say packages.Report) ([]packages.Step, error) {
			return k.cfg.Packages.Apply(ctx, declared, work, say)
		},
	}, in.DryRun, in.Confirm)
}
