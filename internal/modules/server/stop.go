package server

import (
	"context"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/tool"
)

const stopHelp = "For administrators only. Running calls have a short time to finish; jobs that cannot be resumed " +
	"end. The client asks the user. If it cannot ask, ask the user yourself and give the host's name as confirm. " +
	"The host's rules can require the approval of an operator."

type stopIn struct {
	Confirm string `json:"confirm,omitempty" doc:"the host's name, once the user has agreed; needs the setting approvals.callers_word" max:"64"`
}

type stopOut struct {
	Name   string `json:"name" doc:"name of the host"`
	Status string `json:"status" doc:"stopping or restarting"`
	How    string `json:"how" doc:"what happens next"`
}

func (s *server) restart(_ context.Context, c *tool.Call, in stopIn) (stopOut, error) {
	return s.stopHost(c, in, true)
}

func (s *server) shutdown(_ context.Context, c *tool.Call, in stopIn) (stopOut, error) {
	return s.stopHost(c, in, false)
}

func (s *server) stopHost(c *tool.Call, in stopIn, again bool) (stopOut, error) {
	if err := s.rules.Check(c, "stop it"); err != nil {
		return stopOut{}, err
	}
	out := stopOut{Name: s.cfg.Host.About().Name, Status: "stopping"}
	question := "Stop the host %s? It serves no client until it is started again."
	if again {
		out.Status, question = "restarting", "Stop the host %s and start it again? Processes and jobs that run in "+
			"it end."
	}
	if err := confirm.Ask(c, out.Name, fmt.Sprintf(question, out.Name), in.Confirm); err != nil {
		return stopOut{}, err
	}
	var err error
	out.How, err = s.cfg.Host.Stop(again)
	return out, err
}
