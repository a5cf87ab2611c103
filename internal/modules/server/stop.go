package server

import (
	"context"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/tool"
)

const stopHelp = "For those who rule this host. Calls that run have a little time to finish; jobs that cannot go on later end. The person is asked by the client; where it cannot ask, ask them yourself and give the host's name as confirm. Where only an operator may decide this, the host's rules should say so."

type stopIn struct {
	Confirm string `json:"confirm,omitempty" doc:"the host's name, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"64"`
}

type stopOut struct {
	Name   string `json:"name" doc:"of the host that ends"`
	Status string `json:"status" doc:"stopping or restarting"`
	How    string `json:"how" doc:"what happens now"`
}

func (s *server) restart(_ context.Context, c *tool.Call, in stopIn) (stopOut, error) {
	return s.stop(c, in, true)
}

func (s *server) shutdown(_ context.Context, c *tool.Call, in stopIn) (stopOut, error) {
	return s.stop(c, in, false)
}

func (s *server) stop(c *tool.Call, in stopIn, again bool) (stopOut, error) {
	if err := s.rules.Check(c, "end it"); err != nil {
		return stopOut{}, err
	}
	out := stopOut{Name: s.cfg.Host.About().Name, Status: "stopping"}
	question := "End the host %s? Nobody is served until somebody starts it again."
	if again {
		out.Status, question = "restarting", "End the host %s and start it again? What runs in it ends."
	}
	if err := confirm.Ask(c, out.Name, fmt.Sprintf(question, out.Name), in.Confirm); err != nil {
		return stopOut{}, err
	}
	var err error
	out.How, err = s.cfg.Host.Stop(again)
	return out, err
}
