package server

import (
	"context"
	"encoding/json"
	"fmt"

	"gatehouse/tool"
)

const stopHelp = "For those who rule this host. Calls that run have a little time to finish; jobs that cannot go on later end. The person is asked by the client; where it cannot ask, ask them yourself and give the host's name as confirm. Where only an operator may decide this, the host's rules should say so."

type stopIn struct {
	Confirm string `json:"confirm,omitempty" doc:"the host's name, once the person has agreed; for clients that cannot ask" max:"64"`
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
	if err := s.ruling(c); err != nil {
		return stopOut{}, err
	}
	out := stopOut{Name: s.cfg.Host.About().Name, Status: "stopping"}
	question := "End the host %s? Nobody is served until somebody starts it again."
	if again {
		out.Status, question = "restarting", "End the host %s and start it again? What runs in it ends."
	}
	if err := agreed(c, out.Name, fmt.Sprintf(question, out.Name), in.Confirm); err != nil {
		return stopOut{}, err
	}
	var err error
	out.How, err = s.cfg.Host.Stop(again)
	return out, err
}

// agreed asks the person behind the client. One that cannot ask has to name
// what it has asked about.
func agreed(c *tool.Call, name, question, confirm string) error {
	if c.Caller.Can&tool.CanElicit == 0 {
		if confirm == name {
			return nil
		}
		return &tool.Refusal{Code: "unconfirmed", Message: "nothing was done: this needs the agreement of the person, and this client cannot ask",
			Next: fmt.Sprintf("Ask the person yourself: %s If they agree, repeat the call with confirm set to %q.", question, name)}
	}
	answers, err := c.Peer.Ask(tool.Elicit("confirm", question, json.RawMessage(`{"type":"object","properties":{"confirm":{"type":"boolean","title":"Do it"}},"required":["confirm"]}`)))
	if err != nil {
		return err
	}
	var said struct{ Confirm bool }
	action, err := tool.Elicited(answers["confirm"], &said)
	if err != nil {
		return err
	}
	if action != "accept" || !said.Confirm {
		return &tool.Refusal{Code: "declined", Message: "nothing was done: the person did not agree"}
	}
	return nil
}
