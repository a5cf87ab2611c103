package server

import (
	"context"
	"fmt"

	"gatehouse/internal/agreement"
	"gatehouse/internal/packages"
	"gatehouse/internal/phases"
	"gatehouse/tool"
)

const rebuildHelp = `For those who rule this host. It ends the servers of all packages, installs each again from the source it came from (npm packages by their lock file), and starts those that ran.

- It answers with a job at once; job_wait follows it, gatehouse:///public/jobs and packageData show its phases.
- Data stay. A package that cannot be installed again is as it was, and the result says why.
- The person is asked by the client; where it cannot ask, ask them yourself and give "all" as confirm.`

type rebuildIn struct {
	Confirm string `json:"confirm,omitempty" doc:"all, once the person has agreed; for clients that cannot ask" max:"64"`
}

type rebuildOut struct {
	Job    string `json:"job" doc:"follow it with job_wait"`
	Status string `json:"status"`
}

// rebuilt is the result of a job that installed all packages again.
type rebuilt struct {
	Packages []packages.Outcome `json:"packages"`
}

func (s *server) rebuild(_ context.Context, c *tool.Call, in rebuildIn) (rebuildOut, error) {
	if err := s.rules.Check(c, "install its packages again"); err != nil {
		return rebuildOut{}, err
	}
	if s.cfg.Packages == nil {
		return rebuildOut{}, &tool.Refusal{Code: "unsupported", Message: "this host runs no packages", Next: "They are there where the module package is named in the settings: view.modules."}
	}
	all, err := s.cfg.Packages.List()
	if err != nil {
		return rebuildOut{}, err
	}
	question := fmt.Sprintf("Install all %d packages of this host again, from where they came? Their servers end meanwhile.", len(all))
	if err := agreement.Ask(c, "all", question, in.Confirm); err != nil {
		return rebuildOut{}, err
	}
	job, err := s.startRebuild(c)
	return rebuildOut{job, "working"}, err
}

// startRebuild runs it as a job, whose phases are shown.
func (s *server) startRebuild(c *tool.Call) (string, error) {
	const title = "rebuild of all packages"
	ids, who := make(chan string, 1), c.Caller
	id, err := s.deps.Job(c, title, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		var id string
		select {
		case id = <-ids:
		case <-ctx.Done():
			return tool.Result{}, context.Cause(ctx)
		}
		show, ended := func(phases.Progress) {}, func(error) {}
		if s.cfg.Show != nil {
			show, ended = s.cfg.Show(who, id, title)
		}
		done := 0.0
		out, err := s.cfg.Packages.RebuildAll(ctx, func(p phases.Progress) {
			show(p)
			done++ // each time it is told there is more done; how much in all is not known
			c.Peer.Progress(done, 0, "")
		})
		ended(err)
		return tool.Result{Structured: rebuilt{out}}, err
	})
	if err == nil {
		ids <- id
	}
	return id, err
}
