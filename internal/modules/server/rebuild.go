package server

import (
	"context"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

const rebuildHelp = `For those who rule this host. It ends the servers of all packages, installs each again from the source it came from (npm packages by their lock file), and starts those that ran.

- It answers with a job at once; job_wait follows it, gatehouse:///public/jobs and packageData show its phases.
- Data stay. A package that cannot be installed again is as it was, and the result says why.
- The person is asked by the client; where it cannot ask, ask them yourself and give "all" as confirm.`

type rebuildIn struct {
	Confirm string `json:"confirm,omitempty" doc:"all, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"64"`
}

// rebuilt is the result of a job that installed all packages again.
type rebuilt struct {
	Packages []packages.Outcome `json:"packages"`
}

func (s *server) rebuild(_ context.Context, c *tool.Call, in rebuildIn) (progress.Started, error) {
	if err := s.rules.Check(c, "install its packages again"); err != nil {
		return progress.Started{}, err
	}
	if s.cfg.Packages == nil {
		return progress.Started{}, &tool.Refusal{Code: "unsupported", Message: "this host runs no packages", Next: "They are there where the module package is named in the settings: view.modules."}
	}
	all, err := s.cfg.Packages.List()
	if err != nil {
		return progress.Started{}, err
	}
	question := fmt.Sprintf("Install all %d packages of this host again, from where they came? Their servers end meanwhile.", len(all))
	if err := confirm.Ask(c, "all", question, in.Confirm); err != nil {
		return progress.Started{}, err
	}
	return s.cfg.Show.Start(s.deps, c, "rebuild of all packages", func(ctx context.Context, _ *tool.Call, tell func(progress.Progress)) (any, error) {
		out, err := s.cfg.Packages.RebuildAll(ctx, tell)
		return rebuilt{out}, err
	})
}
