package server

import (
	"context"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

const rebuildHelp = `For administrators only. It stops the servers of all packages, installs each package again from its
source (npm packages by their lock file), and starts the servers that ran before.

- It returns a job at once; wait for it with job_wait. gatehouse:///public/jobs and packageData show its phases.
- The data of packages are kept. A package that cannot be installed again stays as it was, and the result has the
  reason.
- The client asks the user. If it cannot ask, ask the user yourself and give "all" as confirm.`

type rebuildIn struct {
	Confirm string `json:"confirm,omitempty" doc:"all, once the user has agreed; needs the setting approvals.callers_word" max:"64"`
}

// rebuildResult is the result of a job that installed all packages again.
type rebuildResult struct {
	Packages []packages.Outcome `json:"packages"`
}

func (s *server) rebuild(_ context.Context, c *tool.Call, in rebuildIn) (progress.Started, error) {
	if err := s.rules.Check(c, "install its packages again"); err != nil {
		return progress.Started{}, err
	}
	if s.cfg.Packages == nil {
		return progress.Started{}, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this host runs no packages",
			Next:    "Packages need the module package in the setting view.modules.",
		}
	}
	all, err := s.cfg.Packages.List()
	if err != nil {
		return progress.Started{}, err
	}
	question := fmt.Sprintf(
		"Install all %d packages of this host again from their sources? Their servers are stopped meanwhile.", len(all),
	)
	if err := confirm.Ask(c, "all", question, in.Confirm); err != nil {
		return progress.Started{}, err
	}
	return s.cfg.Show.Start(
		s.deps,
		c,
		"rebuild of all packages",
		func(ctx context.Context, _ *tool.Call, tell func(progress.Progress)) (any, error) {
			out, err := s.cfg.Packages.RebuildAll(ctx, tell)
			return rebuildResult{out}, err
		},
	)
}
